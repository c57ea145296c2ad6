"""Simulated GPUs that outlive processes: the simulated driver in a process of its own.

A client takes the place of NVML's library and sends every call over a Unix socket, so what one
process locks stays locked when it dies, as on a real driver.
"""
