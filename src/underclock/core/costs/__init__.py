"""What kernels cost at every setting, as measured, and what a step of them costs under its cap.

* `table`: from samples to one cost per kernel and setting
* `step`: what a step costs as it runs, against auto as measured
* `power_window`: how a schedule settles under the cap; `power_limit`: under another limit
* `heat`: what a step draws less for being cooler
* `groups`: kernels that share a setting
* `cap`: who is held by the power cap
* `following`: how kernels' times follow the core clock, and at which clock the step runs
* `settled_auto`: auto shared among kernels that were measured at one clock pair only
* `breakdown`: where a step's energy goes at auto clocks
"""
