"""Campaigns of measurements: what is wanted, the windows that answer it, and the file they go to.

* `survey`: what a campaign may be asked, and the clock pairs that it visits
* `loop`: one run of a campaign into a file, whatever decides what is measured next
* `adaptive`, `steer`, `around`: what decides; a grid needs nothing but its list
* `recording`, `provenance`: into the file, made or continued, and what may share one
* `turns`: arms of a plan run in turns, to validate it
"""
