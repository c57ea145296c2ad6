"""What to ask of the clocks next, from marks that a step passes: pure, without a clock of its own.

* `timetable`: a plan's schedule as changes at launches
* `position`: where the step is, by `intervals` usual between marks and `stalls` that are expected
* `line`: one clock, change after change; `lines`: which change comes next, of either clock
* `latency`: what changes take, believed and seen
* `locks`: what became of a lock; `readings`: what the driver shows, compared with locks
* `steps`: what the machine says; `machine`: all of it together
"""
