"""Setting GPUs so that nothing stays set, whichever process is killed.

* `guarded_gpu`: a GPU that is set with its journal written first, its undo, and `restore`
* `journal`: what was found and changed, on disk; `ownership`: one lock per GPU
* `watchdog`: the process that undoes when its controller ends; `watchdog_process`: its handle
* `processes`: processes by number and start time, their end by pidfd
"""
