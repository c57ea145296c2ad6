"""One model of all kernels on one GPU, fitted to few noisy samples.

* `rows`: samples as arrays, and what makes them impossible to fit
* `model`: time and power of many rows at once, as a function of parameters
* `start`: constants to begin with
* `solve`: the most likely parameters, and how sure they are
* `thin`: the same of many rows, by way of some of them
* `posterior`: what that says of every kernel at every setting
* `estimate`: from a sample_set to a posterior and a cost table
"""
