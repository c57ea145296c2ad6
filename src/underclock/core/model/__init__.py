"""One model of all kernels on one GPU, fitted to few noisy samples.

* `rows`: samples as arrays, and what makes them impossible to fit
* `pooling`: samples of several steps as one set
* `start`: constants to begin with
* `parameters`: time and power of many rows at once, as a function of parameter vectors
* `whitening`: residuals along axes in which they are independent
* `most_likely`: the most likely parameters, and how sure they are
* `subsample`: the same for many rows, by way of some of them
* `posterior`: what that says of every kernel at every setting
* `predicted_change`: what a choice of clocks is expected to change, and how sure that is
* `estimate`: from samples to a posterior and a cost table
* `diagnostics`: the fit as people read it
"""
