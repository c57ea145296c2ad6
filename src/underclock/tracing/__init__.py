"""A user's training step: where its code is, traced, and held ready to be measured.

* `trace`: a workload, a function or a script in, its kernels in launch order out
* `source`: where a step's code is, and which files may be run to find it
* `captured`: a function or a script whose step is captured on a GPU
* `held`: a traced step, made ready to run on a GPU again
* `ranks`: steps of several processes
* `job_files`: traces of all ranks of a job
"""
