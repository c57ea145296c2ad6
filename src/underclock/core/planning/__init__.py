"""Which clocks to hold: strategies side by side, under a time budget kept with confidence.

What is found for a stricter question is a candidate for a laxer one: a coarser arm, less time, a
longer latency, a lower power limit.
"""
