"""What people begin: a plan's clocks held while a command or a block trains, or until Ctrl-C.

* `run`: a schedule, while a command trains
* `applied`: the same while a block of this process does
* `held_gpu`: one GPU at the best fixed clocks or a power limit, or a server's by a governor
* `restore`: what a killed run left set, undone
"""
