"""Jobs on simulated boards in one virtual time: what plans of jobs are judged by.

* `cluster`: boards that differ, wait for one another and take pieces of work
* `job`: a job that runs on them, each rank's clocks asked for as its conductor would
* `profiling`: what instructions cost at each clock, measured in the job itself
* `policed`: a job under the policy that its conductors share
"""
