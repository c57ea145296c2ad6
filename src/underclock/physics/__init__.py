"""A kernel's time and power at given clocks: one model, shared by the simulator and the fit.

* `constants`: what describes a GPU, and what describes a kernel on it
* `timing`: how long a kernel takes
* `power`: voltage, and what the board draws
* `thermal`: how temperature follows power
* `cap`: the core clock at which a power limit holds
* `work`: a kernel nobody has measured, from its FLOPs and bytes

Every function takes floats or arrays of clocks alike.
"""
