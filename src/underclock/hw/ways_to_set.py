"""Which ways there are to set a GPU from this process, and the one that is taken.

Directly, where the driver lets this process; else through zeusd. NVML's own API restriction and
application clocks are no ways: the one does not cover locks, the other is deprecated.
"""

from enum import StrEnum
from typing import NamedTuple

from underclock.errors import NotPermittedError, UnderclockError
from underclock.hw.nvml_calls import READ_ONLY, is_read_only, is_simulated, may_set
from underclock.hw.settable import SettableGpu, SettableNvmlGpu


class WayName(StrEnum):
    """What a way is called, those first that are taken first."""

    DIRECT = "direct"
    ZEUSD = "zeusd"


class Way(NamedTuple):
    """One way to set a GPU; no record, for the watchdog loads this and is to start at once."""

    name: WayName  # which
    works: bool  # whether it is open, as far as reading can tell
    why: str  # why it is, or is not, and what would open it


def ways() -> tuple[Way, ...]:
    """Return every way, in their order; inside an `nvml_session`."""
    if is_read_only():
        return tuple(Way(name, works=False, why=f"{READ_ONLY} is set") for name in WayName)
    direct = Way(WayName.DIRECT, works=True, why="the driver lets this process set clocks")
    if not may_set():
        why = "it needs root or CAP_SYS_ADMIN, outside any user namespace, which this process lacks"
        direct = Way(WayName.DIRECT, works=False, why=why)
    return direct, _zeusd()


def settable_gpu(uuid: str) -> SettableGpu:
    """Return a GPU to be set in the first way that works; inside an `nvml_session`."""
    if is_read_only() or may_set():  # the gate says that it is closed when something is set
        return SettableNvmlGpu(uuid)
    found = ways()
    open_ = next((way.name for way in found if way.works), None)
    if open_ is WayName.ZEUSD:
        from underclock.hw.zeusd import Zeusd, ZeusdGpu, socket_path  # noqa: PLC0415 - only where used

        return ZeusdGpu(uuid, Zeusd(socket_path()))
    raise NotPermittedError(
        f"nothing here may set GPU {uuid}: " + "; ".join(f"{way.name}: {way.why}" for way in found),
        hint="run as root, or have an operator run zeusd (docs/operators.md)",
    )


def _zeusd() -> Way:
    from underclock.hw.zeusd import Zeusd, socket_path  # noqa: PLC0415

    if is_simulated():  # it would set whatever real GPU is at the same place of the bus
        return Way(WayName.ZEUSD, works=False, why="it sets real GPUs, and these are simulated")
    zeusd = Zeusd(socket_path())
    try:
        zeusd.discover()
    except UnderclockError as exc:
        why = f"{exc}; {exc.hint}" if exc.hint else str(exc)
        return Way(WayName.ZEUSD, works=False, why=why)
    finally:
        zeusd.close()
    why = f"it answers at {zeusd.path}; our own watchdog undoes what is set"
    return Way(WayName.ZEUSD, works=True, why=why)
