"""Whether this process may set a GPU by itself, found out by reading only.

NVIDIA's driver asks the kernel for CAP_SYS_ADMIN, outside any user namespace. Root in a container
mostly lacks it.
"""

from pathlib import Path

import pynvml

from underclock.hw.simulated.installed import MAY_SET

_SYS_ADMIN = 21  # the number of CAP_SYS_ADMIN
_EVERYBODY = ["0", "0", "4294967295"]  # user numbers as the kernel itself counts them


def may_set() -> bool:
    """Return whether the driver would let this process set clocks; inside an `nvml_session`.

    What else may stand against it, as a fault, cannot be known without trying.
    """
    simulated = getattr(pynvml.nvmlLib, MAY_SET, None)
    if simulated is not None:
        return bool(simulated() == pynvml.NVML_SUCCESS)
    own = Path("/proc/self")
    return is_admin((own / "status").read_text(), (own / "uid_map").read_text())


def is_admin(status: str, uid_map: str) -> bool:
    """Return whether a process has CAP_SYS_ADMIN.

    Args:
        status: What ``/proc/PID/status`` says.
        uid_map: What ``/proc/PID/uid_map`` says.
    """
    effective = next(
        (line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0"
    )
    return bool(int(effective, 16) >> _SYS_ADMIN & 1) and uid_map.split() == _EVERYBODY
