"""What to ask of the clocks next, from marks that a step passes: pure, without a clock of its own.

* `timetable`: a plan's schedule as changes at launches
* `position`: where the step is, by the intervals usual between marks
* `clock_domains`: which change comes next, of either clock, what it takes and what became of it
* `steps`: what the machine says; `machine`: all of it together
"""
