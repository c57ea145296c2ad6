"""A GPU that exists only as physics, behind the same NVML calls as a real one.

* `models`: the GPUs that can be simulated, their clock tables and constants
* `device`: one virtual GPU: clocks, power cap, heat, energy, over virtual time
* `driver`: the object that takes the place of NVML's C library
* `launcher`: runs kernels on a virtual GPU
* `rig`: all of it set up and torn down
"""
