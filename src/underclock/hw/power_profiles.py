"""Workload power profiles: sets of clocks and limits that NVML can put in force on a GPU."""

import pynvml

from underclock.errors import DeviceError, UsageError
from underclock.hw.nvml_calls import call

_BITS = 32


def enforced_profiles(uuid: str) -> tuple[int, ...]:
    """Return the numbers of the profiles in force; none where the GPU or driver has no such thing.

    Args:
        uuid: Of the GPU; inside an `nvml_session`.
    """
    current = pynvml.c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t()
    try:
        handle = call(f"open GPU {uuid}", pynvml.nvmlDeviceGetHandleByUUID, uuid)
        read = pynvml.nvmlDeviceWorkloadPowerProfileGetCurrentProfiles
        call("read the workload power profiles", read, handle, current)
    except (DeviceError, UsageError):  # an old driver, or a GPU without
        return ()
    words = current.enforcedProfilesMask.mask
    return tuple(
        at * _BITS + bit for at, word in enumerate(words) for bit in range(_BITS) if word >> bit & 1
    )
