"""The constants of a GPU model, fitted to a measured sweep; the simulator runs on them.

* `sweep`: a measured sweep as arrays
* `fixed_time`: how much of their time is fixed in kernels that are known
* `least_squares`: damped least squares within bounds
* `sweep_fit`: the constants that explain a sweep best
* `gpu`: the calibration, and how well it predicts
* `throughput`: rates and energies of operations, from published changes
"""
