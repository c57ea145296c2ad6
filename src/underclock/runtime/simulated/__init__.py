"""A step under a schedule on a virtual GPU: the same machine, driven by the simulator's time.

* `virtual`: marks are launches that begin, calls take time; `execute`: runs steps and sums up
"""
