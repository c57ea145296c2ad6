"""Which samples to take."""
