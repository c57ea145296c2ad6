"""Public test helpers: simulated GPUs for any program, with what goes wrong with them.

`simulated_driver` puts simulated GPUs in NVML's place for everything in this process that uses
nvidia-ml-py, and lets a test look behind them:

    with simulated_driver("rtx3080ti", count=2) as machine, machine.run(kernel, gpu=1):
        machine.clock.sleep_s(10.0)
        monitor()  # any NVML client
        assert machine.gpus[1].energy_j > 1000

`served_gpus` serves them to every process that names the socket in ``UNDERCLOCK_SIMULATOR``, and
`Control` lets things go wrong with them.
"""

from underclock.hw.simulated.driver import SimulatedMachine, simulated_driver
from underclock.hw.simulated.served.client import Control
from underclock.hw.simulated.served.server import Served, served_gpus
from underclock.hw.simulated.work import Fault, FaultKind

__all__ = [
    "Control",
    "Fault",
    "FaultKind",
    "Served",
    "SimulatedMachine",
    "served_gpus",
    "simulated_driver",
]
