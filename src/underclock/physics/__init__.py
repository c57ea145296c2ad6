"""A kernel's time and power at given clocks: one model, shared by the simulator and the fit.

* `constants`: what describes a GPU, and what describes a kernel on it
* `timing`: how long a kernel takes
* `power`: voltage, and what the board draws
* `thermal`: how temperature follows power
* `derivatives`: how time and power change with the constants
* `cap`: the core clock at which a power limit holds
* `mean_power`: the mean power that the driver's loop holds below its limit
* `work`: a kernel nobody has measured, from its FLOPs and bytes

Time and power take one kernel at one clock or at many, and arrays of kernels at as many clocks.
"""
