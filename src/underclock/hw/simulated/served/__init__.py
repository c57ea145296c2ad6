"""Simulated GPUs that outlive processes: the simulated driver in a process of its own.

A client takes the place of NVML's library and sends every call over a Unix socket, so what one
process locks stays locked when it dies, as on a real driver.

* `ctypes_json`: C arguments as JSON and back
* `paced`: virtual time that goes with the machine's monotonic clock
* `streams`: launches and writes that processes put in a row for a virtual GPU
* `server`: answers, with `stream_requests` and `fault_requests`
* `client`: NVML's library as seen by a program; `control`: faults on demand, and the truth
"""
