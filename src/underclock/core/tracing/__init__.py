"""From what a profiler and a captured graph saw to the kernels of a step.

* `profile`: a profiler's trace to activities, each with operator, module and pass, by what was open
  on the host as it asked for them
* `captured`: which activity is which node of a captured graph, and what was lost of a plain run
* `step`: nodes with what launched them, to distinct kernels in launch order
* `names`: what they are called, what bounds them by design, and which the data sizes
* `streams`: what waits for what, within a rank and between ranks
* `recapture`: whether a step captured anew is the one that was traced
* `defects`: what a profiler got wrong of a rank's trace
* `rank_passes`: passes of microbatches in what a rank did, by PyTorch's marks
* `rank_trace`: which pass of which microbatch a rank ran when, and what it sent and received
* `rank_places`: where each rank stands in its job
* `rank_waits`: what collectives and transfers take, and who waits for them
* `job_traces`: the traces of all ranks, as one job
"""
