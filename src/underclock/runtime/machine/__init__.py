"""What to ask of the clocks next, from marks that a step passes: pure, without a clock of its own.

* `timetable`: a plan's schedule as changes at launches, and what became of them
* `position`: where the step is, by the intervals usual between marks
* `clock_domains`: which change comes next, of either clock; `machine`: all of it together
"""
