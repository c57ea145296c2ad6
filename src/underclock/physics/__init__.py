"""A kernel's time and power at given clocks: one model, shared by the simulator and the fit.

* `constants`: what describes a GPU, and what a kernel on it, measured or from its FLOPs and bytes
* `costs`: how long a kernel takes, what the board draws, and how temperature follows
* `derivatives`: how time and power change with the constants
* `cap`: the core clock at which a power limit holds, and the mean power that the limit is of

Time and power take one kernel at one clock or at many, and arrays of kernels at as many clocks.
"""
