"""What a choice makes of a step: cap, heat, overlap, cost table.

* `table`: from samples to one cost per kernel and setting, launches that the step does not wait
  for apart, and what heat adds
* `cap`: who is held by the power cap, and how a schedule settles under it
* `under_cap`: what a step costs as it runs, grouped or not, under its own limit or another
* `unmeasured`: what the step says of kernels that never ran alone
* `following`: how kernels' times follow the core clock, and at which clock the step runs
* `breakdown`: where a step's energy goes at auto clocks
* `whole`: a step that ran whole only
"""
