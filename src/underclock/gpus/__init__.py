"""What is known of GPU models, as data with its sources; simulator, fit and prediction read it."""
