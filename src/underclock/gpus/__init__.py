"""What is known of GPU models, as data with its sources; simulator, fit and prediction read it.

* `models`: one GPU model: clock tables, constants, sensors, switching, how far to trust it
* `catalogue`: what is published of each; a model by its name, or from a file. `data/` has the same
  with constants fitted to a measured sweep
"""
