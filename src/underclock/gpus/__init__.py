"""What is known of GPU models, as data with its sources."""
