"""What people begin: a plan's clocks held while a command or a block trains, or until Ctrl-C.

* `run`: a schedule, while a command trains
* `applied`: the same while a block of this process does
* `fixed`: the best fixed clocks or a power limit, until somebody ends it
* `restore`: what a killed run left set, undone
"""
