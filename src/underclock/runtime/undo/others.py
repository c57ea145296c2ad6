"""Other programs that set a GPU's clocks, as far as reading can tell.

Nothing is asked of them, and nothing is set to find out.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from underclock.hw.settable import enforced_profiles
from underclock.runtime.undo.ownership import OwnedError

_RUN, _PROC = Path("/run"), Path("/proc")
_GEOPM = ("geopm", "geopm-service")  # its service's folder, of late and before
_DCGM = "nv-hostengine"


def refuse_beside_others(
    uuids: Sequence[str],
    *,
    profiles: Callable[[str], tuple[int, ...]] = enforced_profiles,
    run: Path = _RUN,
) -> None:
    """Refuse to set GPUs that another program holds.

    Args:
        uuids: Of the GPUs; inside an `nvml_session`.
        profiles: Reads which workload power profiles are in force.
        run: Where services keep what they know of themselves.

    Raises:
        OwnedError: One does; the error names it.
    """
    for uuid in uuids:
        numbers = profiles(uuid)
        if numbers:
            raise OwnedError(
                f"GPU {uuid} has workload power profile {', '.join(map(str, numbers))} in force, "
                "which sets its clocks and limits",
                hint="see `nvidia-smi power-profiles --list`; clear what is requested first",
            )
    for folder in _GEOPM:
        pid = _number_in(run / folder / "CONTROL_LOCK")
        if pid is not None:
            raise OwnedError(
                f"process {pid} has a GEOPM session that may set this machine's controls",
                hint="end that session first",
            )


def notes_on_others(proc: Path = _PROC) -> tuple[str, ...]:
    """Return what may set clocks too, of which reading cannot tell whether it does.

    Args:
        proc: Where the system tells of processes.
    """
    return tuple(
        f"DCGM's host engine runs here (process {pid}): where somebody gave it a configuration "
        "(`dcgmi config --get` shows it), it may set clocks and limits again"
        for pid in _named(_DCGM, proc)
    )


def _named(name: str, proc: Path) -> Iterator[int]:
    for path in proc.glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == name:
                yield int(path.parent.name)
        except OSError:  # it ended meanwhile
            continue


def _number_in(path: Path) -> int | None:
    """Return the number in a file; ``None`` where there is no such file, or no number in it."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
