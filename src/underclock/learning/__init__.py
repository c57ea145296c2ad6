"""Clocks learned in the running job: how segments respond to clocks, and which to try next."""
