"""Simulated GPUs that outlive processes: the simulated driver in a process of its own.

A client takes the place of NVML's library and sends every call over a Unix socket, so what one
process locks stays locked when it dies, as on a real driver.

* `ctypes_json`: C arguments as JSON and back
* `streams`: launches and writes that processes put in a row for a virtual GPU
* `server`: answers, in virtual time that goes with the machine's clock
* `client`: NVML's library as seen by a program, and control: faults on demand, and the truth
"""
