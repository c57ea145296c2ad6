"""Holds a plan's clocks on a step that trains, and never leaves one behind.

The trainer imports this package: what it needs of it stands on the standard library and ctypes
alone. The controller, a process of its own, imports the rest.
"""
