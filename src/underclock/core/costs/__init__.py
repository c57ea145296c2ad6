"""What kernels cost at every setting, as measured.

* `table`: from samples to one cost per kernel and setting
* `groups`: kernels that share a setting
* `cap`: who is held by the power cap
* `breakdown`: where a step's energy goes at auto clocks
"""
