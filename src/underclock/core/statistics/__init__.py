"""Repeats and how far they scatter, verdicts on promises, change points in a series."""
