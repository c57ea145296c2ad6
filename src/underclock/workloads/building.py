"""What workloads are built of: sizes that may be changed, and kernels written down in turn."""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from underclock.errors import UsageError
from underclock.records import Kernel, Kind, Pass, Step
from underclock.units import name_hint

BF16 = 2
"""Bytes of a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes that decide every kernel of a step."""

    layers: int
    hidden: int
    heads: int

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return what may be changed: every number."""
        return tuple(field.name for field in dataclasses.fields(cls) if field.type is int)

    def changed(self, overrides: Mapping[str, int]) -> Self:
        """Return a copy with other sizes.

        Raises:
            UsageError: No such size.
            ValueError: Sizes that make no model.
        """
        names = self.names()
        unknown = sorted(overrides.keys() - set(names))
        if unknown:
            raise UsageError(
                f"no parameter named {unknown[0]!r}", hint=name_hint(unknown[0], names)
            )
        return dataclasses.replace(self, **overrides)


class KernelWriter:
    """Writes down kernels section by section, in launch order.

    Args:
        passes: Which pass each section belongs to.
        per_layer: Sections whose kernels run once in every layer.
    """

    def __init__(self, layers: int, passes: Mapping[str, Pass], per_layer: set[str]) -> None:
        self.section = ""
        self._layers, self._passes, self._per_layer = layers, passes, per_layer
        self._kernels: list[Kernel] = []

    def memory(self, name: str, size: str, flops: float, moved: float) -> None:
        """Add a kernel that is not a matrix product; ``moved`` in bytes."""
        self.add(name, Kind.MEMORY, size, flops, moved)

    def gemm(self, name: str, m: int, n: int, k: int, *, accumulate: bool = False) -> None:
        """Add C[m,n] (+)= A[m,k] B[k,n]."""
        elements = m * k + k * n + m * n * (2 if accumulate else 1)
        self.add(name, Kind.GEMM, f"{m}x{n}x{k}", 2.0 * m * n * k, BF16 * elements)

    def add(self, name: str, kind: Kind, size: str, flops: float, moved: float) -> None:
        """Add a kernel of any kind to the section."""
        self._kernels.append(
            Kernel(
                name=name,
                kind=kind,
                pass_=self._passes[self.section],
                section=self.section,
                shape=size,
                count=self._times(self.section),
                flops=float(flops),
                bytes_moved=float(moved),
            )
        )

    def step(self, name: str, parameters: dict[str, int]) -> Step:
        """Return the step; runs of per-layer kernels are repeated where they stand."""
        order: list[int] = []
        numbered = enumerate(self._kernels)
        for section, run in itertools.groupby(numbered, lambda each: each[1].section):
            order += [index for index, _ in run] * self._times(section)
        return Step(
            name=name, kernels=tuple(self._kernels), order=tuple(order), parameters=parameters
        )

    def _times(self, section: str) -> int:
        return self._layers if section in self._per_layer else 1
