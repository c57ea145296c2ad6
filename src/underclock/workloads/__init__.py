"""Steps computed from model shapes, no GPU needed: every kernel has its FLOPs and bytes.

* `gpt3`: training GPT-3, as the kernels of llm.c
* `llama`: serving Llama 3, as the kernels of a server: prefill, decode, and both in one launch
"""

from underclock.errors import UsageError
from underclock.records import Step
from underclock.units import name_hint
from underclock.workloads import gpt3, llama
from underclock.workloads.gpt3 import Shape
from underclock.workloads.llama import ServedShape

MODELS: dict[str, Shape | ServedShape] = {**gpt3.MODELS, **llama.MODELS}
SIZES = tuple(dict.fromkeys((*Shape.names(), *ServedShape.names())))
"""What may be changed of a workload; not every one has all."""


def workload(name: str, overrides: dict[str, int] | None = None) -> Step:
    """Build a workload by name, e.g. ``gpt3-xl`` or ``llama3-8b-decode``.

    Args:
        overrides: Fields of `Shape` or `ServedShape` to change, e.g. ``{"batch": 8, "tp": 4}``.

    Raises:
        UsageError: No such workload, or sizes that make no model.
    """
    if name not in MODELS:
        raise UsageError(f"unknown workload {name!r}", hint=name_hint(name, MODELS))
    try:
        return MODELS[name].changed(overrides or {}).step(name)
    except UsageError as exc:
        raise UsageError(f"cannot build {name}: {exc}", hint=exc.hint) from exc
    except ValueError as exc:
        raise UsageError(f"cannot build {name}: {exc}") from exc
