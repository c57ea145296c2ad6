"""What arXiv 2601.08539 reports, as data: the test. It is read to be compared with, never fitted.

J. Spaan, K.-H. Chen, A.-L. Varbanescu: Reducing Compute Waste in LLMs through Kernel-Level DVFS.

`quoted.csv` has every number that is quoted, in the order of the paper; `table1.csv` is Table 1.
Percentages are changes against auto clocks on the paper's RTX 3080 Ti. Tables 1 and 2 are complete;
of the figures only what the text gives in numbers is here.
"""

import csv
import itertools
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple

import msgspec

from underclock.records import Aggregate, Clocks, Granularity, Objective, Record
from underclock.units import parse_mhz


class Change(NamedTuple):
    """Of time and energy of the step against auto, in percent."""

    time_pct: float
    energy_pct: float


class QuotedNumber(Record, frozen=True, kw_only=True):
    """One number that is quoted from the paper, and ours.

    Attributes:
        unit: Of all three numbers; empty for a count.
        ours: ``None`` where there is none.
    """

    group: str
    name: str
    unit: str
    paper: float
    ours: float | None = None
    difference: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedKernel:
    """One row of Table 1: the kernel-level, global, strict choice."""

    section: str
    kernel: str
    invocations: int
    clocks: Clocks
    change: Change


def _rows(file: str) -> list[dict[str, str]]:
    text = (resources.files("underclock.paper") / file).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


QUOTED = {
    row["name"]: msgspec.convert(row, QuotedNumber, strict=False) for row in _rows("quoted.csv")
}
"""Every number by its name, nothing of ours beside it."""


def change(name: str) -> Change:
    """Return a change that is quoted in two numbers."""
    return Change(
        time_pct=QUOTED[f"{name}: time"].paper, energy_pct=QUOTED[f"{name}: energy"].paper
    )


def way(granularity: Granularity, objective: Objective, aggregate: Aggregate) -> str:
    """Return what Table 2 calls a way of choosing."""
    return f"{granularity}-level, {objective}, {aggregate}"


TABLE2 = {
    each: change(way(*each))
    for each in itertools.product(
        (Granularity.PASS, Granularity.KERNEL),
        (Objective.EDP, Objective.WASTE),
        (Aggregate.LOCAL, Aggregate.GLOBAL),
    )
}
REPEATS = int(QUOTED["repeats"].paper)  # of choices measured again
BATCH_SIZE = int(QUOTED["batch"].paper)

# That batch's clocks elsewhere. For the smallest batches only the extremes are given.
BATCH = {8: change("batch 8")}
TENSOR_PARALLEL = {degree: change(f"tensor parallel {degree}") for degree in (4, 8, 16)}


def _table1() -> tuple[PublishedKernel, ...]:
    """Read Table 1, in launch order; changes are in percent of the kernel's own."""
    return tuple(
        PublishedKernel(
            section=row["section"],
            kernel=row["kernel"],
            invocations=int(row["invocations"]),
            clocks=Clocks(core_mhz=parse_mhz(row["core_mhz"]), mem_mhz=parse_mhz(row["mem_mhz"])),
            change=Change(time_pct=float(row["time_pct"]), energy_pct=float(row["energy_pct"])),
        )
        for row in _rows("table1.csv")
    )


TABLE1 = _table1()
