"""Which samples to take: the initial design, and what a further sample is worth."""
