"""Setting GPUs so that nothing stays set, whichever process is killed.

* `guarded_gpu`: a GPU that is set with its journal written first, its undo, and `restore`
* `ownership`: processes, and one lock per GPU that names its owner
* `watchdog`: the process that undoes when its controller ends; `watchdog_process`: its handle
"""
