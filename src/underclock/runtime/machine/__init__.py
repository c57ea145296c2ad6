"""What to ask of the clocks next, from marks that a step passes: pure, without a clock of its own.

* `timetable`: a plan's schedule as changes at launches; `position`: where the step is
* `line`: one clock, change after change; `latency`: what changes take, believed and seen
* `locks`: what became of a lock; `steps`: what the machine says; `machine`: all of it together
"""
