"""A hierarchical model of all kernels on one GPU, fitted to few noisy samples.

Logarithms of time and power are physics plus a discrepancy that neighbouring clocks share plus
noise. Around the most likely parameters everything is normal (a Laplace approximation); Student-t
priors of the kernels' parameters leave outliers unshrunk.
"""
