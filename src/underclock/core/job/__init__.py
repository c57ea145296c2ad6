"""Ranks that wait for each other: when things happen, what that costs, and what may be slower.

* `network`: who waits for whom; when everything begins and ends
"""
