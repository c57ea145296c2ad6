"""What to measure next: where campaigns begin, what a further sample is worth, which mix to run."""
