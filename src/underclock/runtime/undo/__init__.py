"""Setting GPUs so that nothing is left behind, whoever is killed.

* `protocol`: who may write what when, as data; `journal`: what was found, on disk before any change
* `ownership`: one lock per GPU; `processes`: who lives, by pidfd
* `armed`: every change of a run, and its undo, also of what is left when all others are gone
* `watchdog`: the process that undoes when the controller ends; `watchdog_process`: its handle
"""
