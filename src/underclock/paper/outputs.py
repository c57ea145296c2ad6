"""What the study leaves in a folder: its numbers and a page, how those are worded and drawn.

What the paper reports stands beside ours in every drawing: ours filled, the paper's hollow. Which
drawing answers to which figure of the paper is inferred from what its results report, for the
figures themselves could not be looked at.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from underclock.errors import UsageError
from underclock.paper.comparison import basis_of
from underclock.paper.records import Lever, PercentChange, Study, Table1Row, Transfer
from underclock.paper.study import Conditions, run_study, simulated_gpu
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
    figure,
)
from underclock.report.page import rendered
from underclock.report.wording import DASH, EVIDENCE_SENTENCES, clocks_text, minus
from underclock.store import check_output, write_document, write_text
from underclock.units import format_mhz

FIGURE_NUMBERS = {
    "frontier": 3,
    "relaxed": 4,
    "validation": 6,
    "batch": 7,
    "tensor-parallel": 8,
}
"""Figures of the paper, by the key of the chart: inferred."""
PAGE = "paper.html"
_TIME, _ENERGY = "time, change against auto (%)", "energy, change against auto (%)"
_LEVER_COLOURS = {
    Lever.CORE: BLUE,
    Lever.MEMORY: ORANGE,
    Lever.BOTH: PINK,
    Lever.NEITHER: GREY,
}
_SHOWN_BEYOND_PCT = 2.0  # of the frontier, beyond the slowest choice that is marked


def run_paper(conditions: Conditions, folder: Path | None, *, force: bool = False) -> Study:
    """Run the paper's study, and write down its numbers and a page.

    Args:
        conditions: Where and how to run it.
        folder: Made if it is missing; ``None`` writes nothing.

    Raises:
        UsageError: Not a simulated GPU, no such model, or a folder that holds an earlier study.
        DeviceError, MeasurementError: From the GPU.
    """
    simulated_gpu(conditions.gpu)  # refuses before a folder is made
    if folder is None:
        return run_study(conditions)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"cannot make {folder}: {exc.strerror}") from exc
    data, page = folder / "paper.json", folder / PAGE
    for path in (data, page):
        check_output(path, force=force)  # before any work is spent on it
    study = run_study(conditions)
    write_document(data, study, force=force)
    write_text(page, paper_page(study), force=force)
    return study


def paper_page(study: Study) -> str:
    """Return the HTML page of a study."""
    return rendered(
        "paper.html.jinja",
        {"mhz": format_mhz, "number": lambda value, unit: minus(number_text(value, unit))},
        package="underclock.paper",
        basis=basis_of,
        study=study,
        agreement=agreement_text(study),
        evidence_sentence=EVIDENCE_SENTENCES[study.evidence],
        groups=[
            (group, list(rows))
            for group, rows in groupby(study.quoted, key=lambda number: number.group)
        ],
        drawings=[
            (chart, figure(replace(chart, title=f"{chart.title} (ours {study.evidence})")))
            for chart in charts(study)
        ],
        numbers=FIGURE_NUMBERS,
    )


def agreement_text(study: Study) -> str:
    """Say in a sentence how often the same clocks are lowered."""
    agreement = study.agreement
    return (
        f"{agreement.same} of {agreement.kernels} kernels ({agreement.share:.0%}) lower exactly "
        f"the clocks that the paper lowers; {agreement.overlapping} where one clock in common is "
        "enough"
    )


def number_text(value: float | None, unit: str) -> str:
    """Write a number in its unit's digits; a missing one is a dash."""
    if value is None:
        return DASH
    return f"{round(value, 2) + 0.0:{'+.2f' if unit == '%' else 'g'}}"  # + 0.0: no "-0.00"


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


def _marks(
    name: str,
    points: Iterable[tuple[float, float]],
    colour: str,
    symbol: str,
    *,
    papers: bool = False,
    notes: Iterable[str] = (),
) -> Series:
    """Return marks of ours, or of the paper's."""
    return Series(
        name=f"{name}, paper" if papers else name,
        points=tuple(points),
        colour=colour,
        symbol=symbol,
        hollow=papers,
        notes=tuple(notes),
    )


def _places(changes: Iterable[PercentChange]) -> tuple[tuple[float, float], ...]:
    """Return changes as points, time across and energy upwards."""
    return tuple((change.time_pct, change.energy_pct) for change in changes)


def _frontier(study: Study) -> Chart:
    marks = [
        _cells(study, granularity, objective, papers=papers)
        for granularity in (Granularity.PASS, Granularity.KERNEL)
        for objective in (Objective.EDP, Objective.WASTE)
        for papers in (False, True)
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


def _cells(study: Study, granularity: Granularity, objective: Objective, *, papers: bool) -> Series:
    """Return Table 2's cells of one granularity and objective, ours or the paper's."""
    cells = [c for c in study.table2 if (c.granularity, c.objective) == (granularity, objective)]
    ours = [(cell.time_pct, cell.energy_pct) for cell in cells]
    theirs = [(cell.paper_time_pct, cell.paper_energy_pct) for cell in cells]
    return _marks(
        f"{granularity}-level, {objective}",
        theirs if papers else ours,
        ORANGE if granularity is Granularity.PASS else VERMILION,
        "diamond" if objective is Objective.EDP else "star",
        papers=papers,
        notes=(f"{cell.aggregate} aggregate" for cell in cells),
    )


def _relaxed(study: Study) -> Chart:
    curves = [
        Series(
            name=name,
            points=tuple(
                (point.max_slowdown_pct, change.energy_pct)
                for point, change in zip(study.relaxed, changes, strict=True)
                if change is not None
            ),
            colour=colour,
        )
        for name, colour, changes in (
            ("pass-level", ORANGE, [point.pass_global for point in study.relaxed]),
            ("kernel-level, local", PINK, [point.kernel_local for point in study.relaxed]),
            ("kernel-level, global", BLUE, [point.kernel_global for point in study.relaxed]),
        )
    ]
    cells = [cell for cell in study.table2 if cell.objective is Objective.WASTE]
    strict = _marks(
        "strict",
        ((0.0, cell.paper_energy_pct) for cell in cells),
        VERMILION,
        "star",
        papers=True,
        notes=(f"{cell.granularity}-level, {cell.aggregate}" for cell in cells),
    )
    return Chart(
        key="relaxed",
        title="Relaxed waste",
        caption="The least energy when the step may get slower by at most so much. The strict "
        "choices of the paper, from its Table 2, stand at zero.",
        x_title="time budget above auto (%)",
        y_title=_ENERGY,
        series=(*curves, strict),
    )


def _kernels(study: Study) -> Chart:
    series = [
        _lowered(study.table1, lever, papers=papers) for papers in (False, True) for lever in Lever
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


def _lowered(rows: Sequence[Table1Row], lever: Lever, *, papers: bool) -> Series:
    """Return the kernels whose choice, ours or the paper's, pulls one lever."""
    points, notes = [], []
    for row in rows:
        pulled, energy_pct, core_mhz, mem_mhz = (
            (row.paper_lever, row.paper_energy_pct, row.paper_core_mhz, row.paper_mem_mhz)
            if papers
            else (row.lever, row.energy_pct, row.core_mhz, row.mem_mhz)
        )
        if pulled is lever:
            points.append((energy_pct, float(row.kernel_id)))
            notes.append(clocks_text(Clocks(core_mhz=core_mhz, mem_mhz=mem_mhz)))
    colour = _LEVER_COLOURS[lever]
    return _marks(f"lowered: {lever}", points, colour, "circle", papers=papers, notes=notes)


def _validation(study: Study) -> Chart:
    v = study.validation
    found = [(v.discovered_time_pct, v.discovered_energy_pct)]
    theirs, found_by_them = (
        [(v.paper_time_pct, v.paper_energy_pct)],
        [(0.0, v.paper_discovered_energy_pct)],
    )
    return Chart(
        key="validation",
        title="The discovered clocks measured again",
        caption=f"One point a pair: {v.repeats} runs of auto with {v.repeats} of the "
        "discovered clocks. Stars are what was discovered, diamonds the means of all pairs.",
        x_title=_TIME,
        y_title=_ENERGY,
        series=(
            _marks("pairs", _places(v.pairs), GREY, "circle"),
            _marks("mean", [(v.time_pct, v.energy_pct)], BLUE, "diamond"),
            _marks("discovered", found, VERMILION, "star"),
            _marks("mean", theirs, BLUE, "diamond", papers=True),
            _marks("discovered", found_by_them, VERMILION, "star", papers=True),
        ),
    )


def _transfer(key: str, title: str, x_title: str, rows: dict[str, Transfer]) -> Chart:
    def sized(name: str, values: Sequence[float | None], *, papers: bool = False) -> Series:
        """Return what is known of a quantity at each size, in order."""
        known = [(float(i), value) for i, value in enumerate(values) if value is not None]
        colour, symbol = (GREEN, "square") if name == "time" else (BLUE, "circle")
        return _marks(name, known, colour, symbol, papers=papers)

    return Chart(
        key=key,
        title=title,
        caption="Against auto on the same step. Hollow marks are the paper, where it gives "
        "numbers.",
        x_title=x_title,
        y_title="change against auto (%)",
        series=(
            sized("time", [row.time_pct for row in rows.values()]),
            sized("energy", [row.energy_pct for row in rows.values()]),
            sized("time", [row.paper_time_pct for row in rows.values()], papers=True),
            sized("energy", [row.paper_energy_pct for row in rows.values()], papers=True),
        ),
        x_labels=tuple(rows),
    )
