"""A kernel's time and power at given clocks: one model, shared by the simulator and the fit.

Time and power take one kernel at one clock or at many, and arrays of kernels at as many clocks.
"""
