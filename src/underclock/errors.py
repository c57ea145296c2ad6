"""Every exception raised on purpose, and the exit code each one ends the command with.

* UnderclockError (1)             base; never raised itself
  * UsageError (2)                ask differently: unknown name, bad option, an output that exists
  * DeviceError (3)               the hardware or driver said no
    * NotSupportedError           this GPU or driver cannot do it
    * NotPermittedError           it can, but this process may not
    * NotAppliedError             accepted, but the read-back differs
    * StuckError                  the GPU does not come back: the process ends, waiting for nothing
    * NoMemoryError               the GPU's memory is full
  * DataError (4)                 a file cannot be used: mend it or make it anew
  * MeasurementError (5)          the numbers cannot be trusted: measure again
    * NoRoomError                 co-load of the step does not fit into memory
  * InfeasibleError (6)           no choice of clocks meets the budget: loosen it

`underclock plan` also ends with 6, its plan written, where free switching alone keeps the budget.
`underclock validate` ends with 7 where a plan did not keep its promise, and with 8 where the runs
do not decide it: answers, not errors. So does `run --compare`, where the command ends with 0.
What a user writes in Python is refused with a `UsageError` too, which is a ``ValueError``.
"""


class UnderclockError(Exception):
    """Base class; carries the exit code and what the user can do next."""

    exit_code: int = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(UnderclockError, ValueError):
    """The caller asked for something impossible, on the command line or from Python."""

    exit_code = 2


class DeviceError(UnderclockError):
    """The hardware or driver said no."""

    exit_code = 3


class NotSupportedError(DeviceError):
    """This GPU or driver cannot do what was asked."""


class NotPermittedError(DeviceError):
    """The GPU could, but this process may not."""


class NotAppliedError(DeviceError):
    """The driver accepted a setting that the GPU does not run at."""


class StuckError(DeviceError):
    """The GPU does not come back from a launch; nothing on it can be put back or waited for."""


class NoMemoryError(DeviceError):
    """The GPU's memory is full."""


class DataError(UnderclockError):
    """A file cannot be used as what it claims to be."""

    exit_code = 4


class MeasurementError(UnderclockError):
    """A measured number cannot be trusted."""

    exit_code = 5


class NoRoomError(MeasurementError):
    """Co-load of the step does not fit into the GPU's memory."""


class InfeasibleError(UnderclockError):
    """No choice of clocks meets the time budget."""

    exit_code = 6
