"""A hierarchical model of all kernels on one GPU, fitted to few noisy samples.

Logarithms of time and power are physics plus a discrepancy that neighbouring clocks share plus
noise. Around the most likely parameters everything is normal (a Laplace approximation); Student-t
priors of the kernels' parameters leave outliers unshrunk. Data goes one way:

* `sample_sets`: those of several steps as one; samples that cannot be what they say
* `rows`: what a fit rests on, as arrays
* `ran_clocks`: at which clocks samples ran, whatever was asked for
* `sample_rows`: rows of samples, and what makes them impossible to fit
* `company_rows`: rows of what ran in company or inside the step
* `row_runs`: which repeats of a row are odd, and how much they count
* `parameters`: constants of physics from parameter vectors, and derivatives by those
* `hierarchical_prior`: what kernels of a kind say of one another
* `whitening`: residuals along axes in which they are independent
* `damped_steps`: damped least squares, of all parameters or kernel by kernel
* `most_likely`: parameters, sizes of errors and prior in turn, and how sure they are
* `fitting`: from samples to a fit, of as many rows as tell something new
* `predictive`: what that says of every kernel at every setting, however warm it is there
* `posterior`: means and variances of those costs, of their sums, and under a cap
* `predicted_change`: what a choice of clocks is expected to change, and how sure that is
* `entries`: which settings there are, and where each kernel has an answer
* `in_step`: how much more kernels draw inside the step
* `auto_errors`: how sure it is what auto costs
* `cost_estimate`: a posterior with its cost table, and what choices made of them change
* `estimate`: from samples to these
* `limited`: how sure costs are under another power limit
* `diagnostics`: the fit as people read it
"""
