"""The only package that talks to devices, real or simulated.

* `base`: what the rest of the program may ask: Gpu, Launcher, Clock, Measurer and its capabilities
* `nvml`: one NVIDIA GPU; `nvml_calls`: the session, and the gate that read-only mode closes
* `settable`: what can be set on a GPU and put back; `permission`: whether this process may
* `ways_to_set`: the way that is open: directly, `leased` from a service of ours, or `zeusd`
* `listed`: the clock pairs that can be held
* `served_simulator`: simulated GPUs of another process in NVML's place; `wire`, `socket_file` and
  `peers`: messages over Unix sockets, and who is at the other end
* `lease`: clocks held for a block and given back whatever happens; `interrupts`: signals that wait
* `interference`: noticing another program that sets the clocks; `waiting`: deadlines of launches
* `ticker`, `switchable`: watching clocks change, and giving them back one by one
* `measurer`: measuring windows on a GPU; `replay`: the same answers from a table
* `rounds`: what a round of a mix is made of; `clock_watch`: the core clock all through a window
* `simulated/`: a virtual GPU behind the same NVML calls
* `clock`: real time
"""
