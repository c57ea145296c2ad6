"""Simulated GPUs by name: calibrated where a sweep was fitted, as published where none was."""

from importlib import resources
from pathlib import Path

from underclock.errors import DataError, UsageError
from underclock.gpus.models import GpuModel, decode
from underclock.gpus.specs import SPECS
from underclock.units import nearest


def model_names() -> tuple[str, ...]:
    """Return every ``NAME`` of ``sim:NAME``."""
    return tuple(SPECS)


def gpu_model(name: str) -> GpuModel:
    """Return a model by short name, or from a file that ``underclock calibrate`` wrote.

    Raises:
        UsageError: No such model; another GPU's constants would be worse than none.
        DataError: The file cannot be read as a model.
    """
    if name.endswith(".json"):
        return _read(Path(name))
    if name not in SPECS:
        raise UsageError(f"no simulated GPU is called {name!r}", hint=nearest(name, SPECS))
    data = resources.files("underclock.gpus") / "data" / f"{name}.json"
    return decode(data.read_bytes(), str(data)) if data.is_file() else SPECS[name]


def _read(path: Path) -> GpuModel:
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as exc:
        raise DataError(
            f"cannot read {path}: {exc.strerror}", hint="make one with `underclock calibrate`"
        ) from exc
