"""Clocks chosen by company: what a mix tells of a kernel, and which mix to run next.

Under a power cap a kernel in one graph with a hot companion runs at lower clocks than alone, and
with idling at higher ones, though nobody sets a clock. Data goes one way:

* `company`: what idling and the companion draw by themselves
* `taking_off`: what is left of a mix for its kernel, or for the step
* `power_peak`: a peak of power that no clock shows, and what is left below it
* `reach`: which clocks company led to, and what readers must know of that
* `mixing`: which mix runs at a wanted clock
* `worth`: how well powers are known, and what another mix would tell
* `wanted`: what a campaign may measure
* `step_energy`: how surely the step's energy is known, and which mix would tell most of it
* `agenda`: what a campaign does next
"""
