"""The drawings of ``underclock paper`` as plain data, for whoever draws them.

What the paper reports stands beside ours in every one: ours filled, the paper's hollow.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from underclock.paper.records import Lever, PercentChange, Study, Table1Row, Transfer
from underclock.records import Clocks, Granularity, Objective
from underclock.report.chart import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    VERMILION,
    Chart,
    Series,
)
from underclock.report.wording import clocks_text

_TIME, _ENERGY = "time, change against auto (%)", "energy, change against auto (%)"
_LEVER_COLOURS = {
    Lever.CORE: BLUE,
    Lever.MEMORY: ORANGE,
    Lever.BOTH: PINK,
    Lever.NEITHER: GREY,
}
_SHOWN_BEYOND_PCT = 2.0  # of the frontier, beyond the slowest choice that is marked


def charts(study: Study) -> tuple[Chart, ...]:
    """Return every drawing of a study."""
    return (
        _frontier(study),
        _relaxed(study),
        _kernels(study),
        _validation(study),
        _transfer(
            "batch",
            "The discovered clocks at other batches",
            "sequences per step",
            {str(row.batch): row for row in study.batch_transfer},
        ),
        _transfer(
            "tensor-parallel",
            "The discovered clocks under tensor parallelism",
            "GPUs that share the step",
            {str(row.tensor_parallel): row for row in study.tensor_parallel_transfer},
        ),
    )


def _places(changes: Iterable[PercentChange]) -> tuple[tuple[float, float], ...]:
    """Return changes as points, time across and energy upwards."""
    return tuple((change.time_pct, change.energy_pct) for change in changes)


def _frontier(study: Study) -> Chart:
    marks = [
        _cells(study, granularity, objective, hollow=hollow)
        for granularity in (Granularity.PASS, Granularity.KERNEL)
        for objective in (Objective.EDP, Objective.WASTE)
        for hollow in (False, True)
    ]
    limit_pct = max(x for series in marks for x, _ in series.points) + _SHOWN_BEYOND_PCT
    lines = [
        Series(
            name=f"{name}-level frontier",
            points=_places(change for change in frontier if change.time_pct <= limit_pct),
            colour=colour,
        )
        for name, frontier, colour in (
            ("pass", study.pass_frontier, ORANGE),
            ("kernel", study.kernel_frontier, BLUE),
        )
    ]
    return Chart(
        key="frontier",
        title="Time and energy of the step, and Table 2",
        caption="Further left is faster, further down is less energy. The lines are choices that "
        "no mixture of others beats; the marks are Table 2, each once for every aggregate.",
        x_title=_TIME,
        y_title=_ENERGY,
        series=(*lines, *marks),
    )


def _cells(study: Study, granularity: Granularity, objective: Objective, *, hollow: bool) -> Series:
    """Return Table 2's cells of one granularity and objective, ours or the paper's."""
    cells = [
        cell
        for cell in study.table2
        if cell.granularity is granularity and cell.objective is objective
    ]
    return Series(
        name=f"{granularity}-level, {objective}" + (", paper" if hollow else ""),
        points=tuple(
            (cell.paper_time_pct, cell.paper_energy_pct)
            if hollow
            else (cell.time_pct, cell.energy_pct)
            for cell in cells
        ),
        colour=ORANGE if granularity is Granularity.PASS else VERMILION,
        symbol="diamond" if objective is Objective.EDP else "star",
        hollow=hollow,
        notes=tuple(f"{cell.aggregate} aggregate" for cell in cells),
    )


def _relaxed(study: Study) -> Chart:
    curves: dict[str, tuple[str, list[PercentChange | None]]] = {
        "pass-level": (ORANGE, [point.pass_global for point in study.relaxed]),
        "kernel-level, local": (PINK, [point.kernel_local for point in study.relaxed]),
        "kernel-level, global": (BLUE, [point.kernel_global for point in study.relaxed]),
    }
    budgets = [point.max_slowdown_pct for point in study.relaxed]
    strict = [cell for cell in study.table2 if cell.objective is Objective.WASTE]
    return Chart(
        key="relaxed",
        title="Relaxed waste",
        caption="The least energy when the step may get slower by at most so much. The strict "
        "choices of the paper, from its Table 2, stand at zero.",
        x_title="time budget above auto (%)",
        y_title=_ENERGY,
        series=(
            *(
                Series(
                    name=name,
                    points=tuple(
                        (budget, change.energy_pct)
                        for budget, change in zip(budgets, changes, strict=True)
                        if change is not None
                    ),
                    colour=colour,
                )
                for name, (colour, changes) in curves.items()
            ),
            Series(
                name="strict, paper",
                points=tuple((0.0, cell.paper_energy_pct) for cell in strict),
                colour=VERMILION,
                symbol="star",
                hollow=True,
                notes=tuple(f"{cell.granularity}-level, {cell.aggregate}" for cell in strict),
            ),
        ),
    )


def _kernels(study: Study) -> Chart:
    series = [
        _lowered(study.table1, lever, hollow=hollow) for hollow in (False, True) for lever in Lever
    ]
    return Chart(
        key="kernels",
        title="Energy of each kernel, and Table 1",
        caption="One row a kernel, in launch order. The colour says which clock the choice holds "
        "below the one that runs under auto.",
        x_title="energy of the kernel, change against auto (%)",
        y_title="",
        series=tuple(one for one in series if one.points),
        y_labels=tuple(f"{row.kernel_id} {row.kernel}" for row in study.table1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KernelChoice:
    """The clocks of one kernel, ours or the paper's, and what they do to its energy."""

    row: int
    energy_pct: float
    clocks: Clocks
    lever: Lever


def _choice(row: Table1Row, *, papers: bool) -> _KernelChoice:
    if papers:
        return _KernelChoice(
            row=row.kernel_id,
            energy_pct=row.paper_energy_pct,
            clocks=Clocks(core_mhz=row.paper_core_mhz, mem_mhz=row.paper_mem_mhz),
            lever=row.paper_lever,
        )
    return _KernelChoice(
        row=row.kernel_id,
        energy_pct=row.energy_pct,
        clocks=Clocks(core_mhz=row.core_mhz, mem_mhz=row.mem_mhz),
        lever=row.lever,
    )


def _lowered(rows: Sequence[Table1Row], lever: Lever, *, hollow: bool) -> Series:
    """Return the kernels whose choice, ours or the paper's, pulls one lever."""
    every = [_choice(row, papers=hollow) for row in rows]
    choices = [choice for choice in every if choice.lever is lever]
    return Series(
        name=f"lowered: {lever}" + (", paper" if hollow else ""),
        points=tuple((choice.energy_pct, float(choice.row)) for choice in choices),
        colour=_LEVER_COLOURS[lever],
        symbol="circle",
        hollow=hollow,
        notes=tuple(clocks_text(choice.clocks) for choice in choices),
    )


def _validation(study: Study) -> Chart:
    again = study.validation
    repeats = again.repeats
    return Chart(
        key="validation",
        title="The discovered clocks measured again",
        caption=f"One point a pair: {repeats} runs of auto with {repeats} of the "
        "discovered clocks. Stars are what was discovered, diamonds the means of all pairs.",
        x_title=_TIME,
        y_title=_ENERGY,
        series=(
            Series(name="pairs", points=_places(again.pairs), colour=GREY, symbol="circle"),
            _mean("mean", again.time_pct, again.energy_pct),
            _discovered("discovered", again.discovered_time_pct, again.discovered_energy_pct),
            _mean("mean, paper", again.paper_time_pct, again.paper_energy_pct, hollow=True),
            _discovered("discovered, paper", 0.0, again.paper_discovered_energy_pct, hollow=True),
        ),
    )


def _mean(name: str, time_pct: float, energy_pct: float, *, hollow: bool = False) -> Series:
    at = ((time_pct, energy_pct),)
    return Series(name=name, points=at, colour=BLUE, symbol="diamond", hollow=hollow)


def _discovered(name: str, time_pct: float, energy_pct: float, *, hollow: bool = False) -> Series:
    at = ((time_pct, energy_pct),)
    return Series(name=name, points=at, colour=VERMILION, symbol="star", hollow=hollow)


def _transfer(key: str, title: str, x_title: str, rows: dict[str, Transfer]) -> Chart:
    time = [row.time_pct for row in rows.values()]
    energy = [row.energy_pct for row in rows.values()]
    paper_time = [row.paper_time_pct for row in rows.values()]
    paper_energy = [row.paper_energy_pct for row in rows.values()]
    return Chart(
        key=key,
        title=title,
        caption="Against auto on the same step. Hollow marks are the paper, where it gives "
        "numbers.",
        x_title=x_title,
        y_title="change against auto (%)",
        series=(
            _sized("time", time, GREEN, "square"),
            _sized("energy", energy, BLUE, "circle"),
            _sized("time, paper", paper_time, GREEN, "square", hollow=True),
            _sized("energy, paper", paper_energy, BLUE, "circle", hollow=True),
        ),
        x_labels=tuple(rows),
    )


def _sized(
    name: str, values: Sequence[float | None], colour: str, symbol: str, *, hollow: bool = False
) -> Series:
    """Return what is known of a quantity at each size, in order."""
    points = tuple((float(i), value) for i, value in enumerate(values) if value is not None)
    return Series(name=name, points=points, colour=colour, symbol=symbol, hollow=hollow)
