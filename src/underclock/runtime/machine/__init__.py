"""What to ask of the clocks next, from marks that a step passes: pure, without a clock of its own.

* `timetable`: a plan's schedule as changes at launches
* `position`: where the step is, by `intervals` usual between marks
* `clock_domains`: which change comes next, of either clock, and what changes take
* `locks`: what became of a lock, by what the driver shows
* `steps`: what the machine says; `machine`: all of it together
"""
