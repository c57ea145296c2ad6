"""Which samples to take.

* `initial_design`: settings to begin with, before anything is measured
* `acquisition`: what a further sample is worth
"""
