"""A GPU that exists only as physics, behind the same NVML calls as a real one.

* `device`: one virtual GPU: clocks, power, heat, energy, over virtual time
* what it is made of: `work` and `costs` (what runs, and what that takes), `clocks` (locks, and the
  power cap), `boards` (what is shown of the truth), `faults` (what goes wrong)
* `driver`: the object that takes the place of NVML's C library; `calls` answers for each GPU
* `launcher`: runs kernels on a virtual GPU; `ticker`: runs tiny pieces of equal work and times each
* `rig`: all of it set up and torn down
* `served/`: the driver in a process of its own, for every process of a machine
"""
