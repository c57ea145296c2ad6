"""Training steps as lists of kernels, computed from model shapes; no GPU needed.

One module per family. A family knows its members by name and builds a `Step` from them.

* `gpt3`: the sizes of GPT-3's members, of one GPU's share under tensor parallelism, and the kernels
"""

from underclock.errors import UsageError
from underclock.records import Step
from underclock.units import name_hint
from underclock.workloads.gpt3 import MODELS, SIZES, Shape, gpt3_step

__all__ = ["MODELS", "SIZES", "Shape", "gpt3_step", "workload"]


def workload(name: str, overrides: dict[str, int] | None = None) -> Step:
    """Build a workload by name, e.g. ``gpt3-xl``.

    Args:
        name: A key of `MODELS`.
        overrides: Fields of `Shape` to change, e.g. ``{"batch": 8, "tp": 4}``.

    Raises:
        UsageError: No such workload, or sizes that make no model.
    """
    if name not in MODELS:
        raise UsageError(f"unknown workload {name!r}", hint=name_hint(name, MODELS))
    try:
        return gpt3_step(name, MODELS[name].changed(overrides or {}))
    except UsageError as exc:
        raise UsageError(f"cannot build {name}: {exc}", hint=exc.hint) from exc
    except ValueError as exc:
        raise UsageError(f"cannot build {name}: {exc}") from exc
