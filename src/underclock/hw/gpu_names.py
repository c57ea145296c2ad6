"""What a user writes after ``--gpu``, and what the GPU behind it can do.

A name is parsed once (`parse_gpu`), so that a command refuses what the GPU cannot do before
anything is opened.
"""

from dataclasses import dataclass
from enum import StrEnum

from underclock.errors import NotSupportedError, UsageError
from underclock.hw.base import Capability
from underclock.hw.replay import ReplayMeasurer
from underclock.units import name_hint


class GpuKind(StrEnum):
    """What answers behind a name."""

    SIMULATED = "sim"
    REPLAYED = "replay"
    REAL = "nvml"


_CAPABILITIES = {
    GpuKind.SIMULATED: frozenset(Capability),
    GpuKind.REPLAYED: ReplayMeasurer.capabilities,
    GpuKind.REAL: frozenset({Capability.READ, Capability.RUN, Capability.LOCK, Capability.MIX}),
}
_EXAMPLES = dict(zip(GpuKind, ("sim:rtx3080ti", "replay:TABLE.csv", "nvml:0"), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuName:
    """What follows ``--gpu``, taken apart."""

    text: str
    kind: GpuKind
    name: str = ""  # of a simulated GPU's model, or of a file
    unit: int = 0  # which simulated GPU of that model; unit 0 is the model itself
    index: int = 0  # of a real GPU, as the driver counts

    @property
    def is_simulated(self) -> bool:
        """Whether it is simulated."""
        return self.kind is GpuKind.SIMULATED

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do, permission apart."""
        return _CAPABILITIES[self.kind]

    def need(self, capability: Capability) -> None:
        """Refuse a GPU that cannot do what is asked."""
        if capability in self.capabilities:
            return
        hint = f"name a GPU that can, for example {_EXAMPLES[GpuKind.SIMULATED]}"
        cannot = f"{self.text!r} cannot {capability}"
        if self.kind is GpuKind.REPLAYED:
            raise UsageError(f"{cannot}: a table only repeats what was measured before", hint=hint)
        raise NotSupportedError(
            f"{cannot}: this version does that on simulated GPUs only", hint=hint
        )


def parse_gpu(text: str) -> GpuName:
    """Take apart ``sim:NAME``, ``sim:NAME#UNIT``, ``replay:TABLE.csv`` or ``nvml:INDEX``.

    Nothing after ``nvml`` is the first real GPU. A unit may be a board that has a name; with
    ``#smooth`` at the end any does what equations say.
    """
    kind, _, rest = text.partition(":")
    if kind not in list(GpuKind):
        forms = ", ".join(_EXAMPLES.values())
        near = name_hint(kind, list(GpuKind))
        raise UsageError(f"unknown GPU {text!r}", hint=f"{near}; write {forms}")
    if kind == GpuKind.REAL:
        if rest and not (rest.isascii() and rest.isdecimal()):
            raise UsageError(f"cannot read {rest!r} as a GPU's number", hint="write nvml:0")
        return GpuName(text=text, kind=GpuKind.REAL, index=int(rest or 0))
    if not rest:
        hint = f"write for example {_EXAMPLES[GpuKind(kind)]}"
        raise UsageError(f"{text!r} names no GPU", hint=hint)
    if kind == GpuKind.REPLAYED:
        return GpuName(text=text, kind=GpuKind.REPLAYED, name=rest)
    # It loads NumPy, and a process that holds clocks names no simulated GPU.
    from underclock.gpus.models import SMOOTH, board_names  # noqa: PLC0415

    kind_of = SMOOTH if rest.endswith(SMOOTH) else ""
    name, mark, unit = rest.removesuffix(SMOOTH).rpartition("#")
    if not mark or rest.endswith(".json") or rest in board_names():
        return GpuName(text=text, kind=GpuKind.SIMULATED, name=rest)
    if not (unit.isascii() and unit.isdecimal()):
        named = ", ".join(f"sim:{board}" for board in (*board_names(), f"{name}{SMOOTH}"))
        raise UsageError(
            f"cannot read {unit!r} as a simulated GPU's unit",
            hint=f"write for example sim:{name or 'rtx3080ti'}#3; boards with a name are {named}",
        )
    return GpuName(text=text, kind=GpuKind.SIMULATED, name=name + kind_of, unit=int(unit))
