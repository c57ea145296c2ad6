"""Samples to one cost per kernel and setting: the table, groups that share a setting, the breakdown."""
