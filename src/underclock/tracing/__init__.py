"""A user's training step: where its code is, traced, and held ready to be measured.

* `source`: where a step's code is, and which files may be run to find it
* `captured`: a function or a script whose step is captured on a GPU
* `held`: a workload or a function to its kernels, and a traced step made ready to run again
* `job_files`: traces of all ranks of a job
"""
