"""Samples to one cost per kernel and setting, groups that share a setting, the breakdown."""
