"""Clocks chosen by company: what a mix tells of a kernel, and which mix to run next.

Under a power cap a kernel in one graph with a hot companion runs at lower clocks than alone, and
with idling at higher ones, though nobody sets a clock.
"""
