"""A GPU that exists only as physics, behind the same NVML calls as a real one.

* `boards`: what no fit touches; the GPUs that can be simulated are in `gpus`
* `device`: one virtual GPU: clocks, power, heat, energy, over virtual time
* what it is made of: `work` and `costs` (what runs, and what that takes), `company` (what kernels
  run with in a mix), `powerloop` (the power cap), `locks` (how clocks follow them), `sensors` (what
  is shown of the truth), `spread` (how units differ), `agenda` (what happens at a set time),
  `faults` (what goes wrong)
* `driver`: the object that takes the place of NVML's C library (`installed` puts it there); its
  calls are in `calls_*`, and `cinterface` is how they take arguments
* `launcher`: runs kernels on a virtual GPU; `ticker`: runs tiny pieces of equal work and times each
* `rig`: all of it set up and torn down
* `served/`: the driver in a process of its own, for every process of a machine
"""
