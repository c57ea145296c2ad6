"""Pure maths: samples in, costs and choices out. No clock, disk, device or hidden randomness.

* `costs/`: samples to one cost per kernel and setting, the step under its cap, groups that share a
  setting, the breakdown
* `steering/`: kernels in company: what a mix tells, and which to run next
* `model/`: few noisy samples to a posterior of what every setting costs
* `calibration/`: a whole measured sweep to the constants that a simulated GPU runs on
* `sampling/`: the initial design, and what a further sample is worth
* `knapsack/`: one setting per group within a time budget, with its proof, below a power limit; the
  frontier
* `switching/`: cyclic schedules, where changing clocks takes time and energy
* `planning/`: the goal, the strategies side by side, the chance constraint
* `prediction/`: what other clocks would save, told from auto clocks alone
* `statistics/`: repeats in pairs, verdicts, change points
* `tracing/`: a profile and a graph to a step
"""
