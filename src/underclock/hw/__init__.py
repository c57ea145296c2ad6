"""The only package that talks to devices, real or simulated.

* `base`: what the rest of the program may ask: Gpu, Launcher, Clock, Ticker, Measurer
* `nvml`: one NVIDIA GPU; `nvml_calls`: whose library answers, the session, and the gate that
  read-only mode closes
* `settable`: what can be set on a GPU and put back, and who else computes there
* `ways_to_set`: the way that is open: directly, `leased` from a service of ours, or `zeusd`
* `wire`: messages over Unix sockets, and who is at the other end
* `lease`: clocks held for a block and given back whatever happens; `interrupts`: signals that wait
* `interference`: noticing another program that sets the clocks
* `watching`: deadlines of launches, the core clock all through a window, a log of clocks
* `measurer`: measuring windows on a GPU; `replay`: the same answers from a table
* `rounds`: what a round of a mix is made of; `lockstep`: ranks that launch the same as often
* `cuda/`: a step on a real GPU; `simulated/`: a virtual GPU behind the same NVML calls
* `gpu_names`: the text after ``--gpu``; `clock`: real time
"""
