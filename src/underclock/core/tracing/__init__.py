"""From what a profiler and a captured graph saw to the kernels of a step.

* `profile`: a profiler's trace to activities, each with operator, module and pass
* `host`: what was open on the host as it asked for each of them
* `alignment`: which activity is which node of the graph
* `step`: nodes with what launched them, to distinct kernels in launch order
* `names`: what they are called, and `sizes`: launches that differ in a size the data decides
* `recapture`: whether a step captured anew is the one that was traced
* `kinds`: what bounds a kernel by design, and its FLOPs, read off its operator
"""
