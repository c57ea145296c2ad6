"""What is known of GPU models, as data with its sources; simulator, fit and prediction read it.

* `models`: one GPU model, and how far to trust it; by its name (`data/`), or from a file
"""
