"""Repeats compared in pairs, verdicts on promises, change points in a series."""
