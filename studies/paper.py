"""Run the paper's study on the simulated GPU: docs/evidence/paper.md.

python studies/paper.py
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from pages import fill, markdown
from underclock.paper.comparison import basis_of
from underclock.paper.outputs import FIGURE_NUMBERS, agreement_text, number_text
from underclock.paper.records import Study
from underclock.paper.study import PAPERS_GPU, Conditions, run_study
from underclock.units import format_mhz

_DRAWINGS = {
    "frontier": "time and energy of the step: frontier per pass and per kernel, and Table 2",
    "relaxed": "relaxed waste: least energy against the time budget",
    "validation": "all pairs of repeats of auto and of the discovered clocks",
    "batch": "the discovered clocks at other batches",
    "tensor-parallel": "the discovered clocks under tensor parallelism",
}


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return markdown([header, *rows]) + "\n"


def _percents(values: Iterable[float | None]) -> list[str]:
    return [number_text(value, "%") for value in values]


def _quoted(study: Study) -> str:
    parts = []
    for group, numbers in groupby(study.quoted, key=lambda number: number.group):
        rows = [
            [
                number.name,
                *(
                    number_text(value, number.unit)
                    for value in (number.paper, number.ours, number.difference)
                ),
                number.unit,
                basis_of(number.group, number.name),
            ]
            for number in numbers
        ]
        parts.append(f"### {group}\n\n" + _table(("", "paper", "ours", "difference", "", ""), rows))
    return "## Every quoted number\n\nThe difference is ours less the paper's.\n\n" + "\n".join(
        parts
    )


def _clocks(study: Study) -> str:
    rows = [
        [
            f"{row.kernel_id} {row.kernel}",
            f"{format_mhz(row.paper_core_mhz)} / {format_mhz(row.paper_mem_mhz)}",
            f"{format_mhz(row.core_mhz)} / {format_mhz(row.mem_mhz)}",
            *_percents(
                (row.paper_time_pct, row.time_pct, row.paper_energy_pct, row.energy_pct),
            ),
            row.paper_lever,
            row.lever,
        ]
        for row in study.table1
    ]
    header = (
        "kernel",
        "core / memory, paper",
        "ours",
        "time, paper",
        "ours",
        "energy, paper",
        "ours",
        "lowered, paper",
        "ours",
    )
    return (
        f"## Clocks per kernel\n\n{agreement_text(study)}. A clock is lowered where "
        "the choice holds it below the one read back under auto, on the simulated GPU for both "
        f"columns. Clocks in MHz, changes in percent.\n\n{_table(header, rows)}"
    )


def _curves(study: Study) -> str:
    relaxed = [
        _percents(
            (
                point.max_slowdown_pct,
                *(
                    arm.energy_pct if arm else None
                    for arm in (point.pass_global, point.kernel_local, point.kernel_global)
                ),
            )
        )
        for point in study.relaxed
    ]
    transfers = [
        [
            str(row.batch),
            str(row.tensor_parallel),
            *_percents((row.paper_time_pct, row.time_pct, row.paper_energy_pct, row.energy_pct)),
        ]
        for row in (*study.batch_transfer, *study.tensor_parallel_transfer)
    ]
    return (
        "## Relaxed waste\n\nEnergy in percent against auto, when time may rise by the budget. The "
        "paper gives numbers for a budget of zero only.\n\n"
        + _table(("budget", "pass", "kernel, local", "kernel, global"), relaxed)
        + "\n## The discovered clocks elsewhere\n\nIn percent, against auto on the same step.\n\n"
        + _table(
            ("batch", "tensor parallel", "time, paper", "ours", "energy, paper", "ours"), transfers
        )
    )


def main() -> None:
    """Fill the page."""
    gpus = (PAPERS_GPU, f"{PAPERS_GPU}#paper")
    studies = [run_study(Conditions(gpu=gpu)) for gpu in gpus]
    again = studies[0].a4000
    drawings = [(str(number), _DRAWINGS[key]) for key, number in FIGURE_NUMBERS.items()]
    fitted = [f"- `{gpu}`: {study.calibration}" for gpu, study in zip(gpus, studies, strict=True)]
    fitted.append(f"- {again.missing or f'{again.gpu}: {again.calibration}'}")
    told = []
    for gpu, study in zip(gpus, studies, strict=True):
        warnings = [f"**{warning}**\n" for warning in study.warnings]
        told += [f"# `{gpu}`\n", *warnings, _quoted(study), _clocks(study), _curves(study)]
    fill(
        "paper",
        {
            "fitted": "\n".join(fitted),
            "numbers": "\n".join(told),
            "drawings": _table(("figure", "drawing"), drawings),
        },
        repeats="One study a board; only the simulated GPU's noise scatters; its seed is fixed.",
    )


if __name__ == "__main__":
    main()
