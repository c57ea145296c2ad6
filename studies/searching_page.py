"""The page of the searches: text around numbers, no arithmetic beyond a mean."""

import os
import platform
from collections.abc import Sequence

import numpy as np

import searching_tuner
from searching_results import MORE, Cell, DataSetResults, strategy_of

_HEAD = """# Searches for the samples of a plan

How many samples does a plan need, and which? Every searcher below is given the same number of
samples, the planner makes a plan from only those, and the plan is executed on the truth. Numbers
on tables that somebody measured are **replayed**, the truth being the whole table; those of
`sim_rtx3080ti` are **simulated**: rows are a full grid of GPT-3 XL with the GPU's noise, the truth
is the same grid without it. No clocks of a real GPU were set. Command:

    make study STUDY=searching

{machine}; Kernel Tuner {version} in its simulation mode; {minutes:.0f} min in all.

- *Regret*: the saving of the plan made on the whole truth, less the saving of the executed plan, in
  percentage points of the baseline's energy; then ± its standard deviation over seeds, and in
  brackets the share of the full saving that is reached. Kernel level, one global time budget, free
  switching. Random has 10 seeds, Kernel Tuner's strategies {seeds}.
- *Adaptive* is ours: `measure --grid adaptive` for one time budget. On a table it plans on the rows
  it took, as the others do; on the simulator with the fit, within the budget at 95 % confidence,
  while the others take each sample for the truth. One run each: on a table there is no chance in
  it, and [promises.md](promises.md) has ten runs of the simulator. There it is not asked for more
  than 16 samples a kernel.
- Samples include the baseline of every kernel (auto, or in a table without it the fastest clocks
  every kernel has): no plan can do without.
- *GPU time* of a table is 25 s to warm and 5 s of window a sample, and 1 s at each change of
  clocks, as in the paper; of the simulator it is its virtual time, warming the GPU included.
  Searches that go kernel by kernel change clocks at nearly every sample, grids seldom.
- *The paper's grid*: core clocks nearest to every 210 MHz, every memory clock, auto. It takes what
  it takes. *Spread evenly*: settings at equal distances in the list from slow to fast, memory
  first, as many of each kernel. *Random*: rows from all kernels together.
- *Kernel Tuner*: one search per kernel over its clocks, equal evaluations each (what is left over
  goes to the kernels of most energy). Options are the defaults, but a first population is no more
  than half of the evaluations: by default it would be all of them. Every strategy ran with two
  objectives: *energy*, and *energy in time*, which is energy where the kernel alone keeps the
  budget and otherwise worse than auto, growing with time. The better of the two, judged by regret,
  stands here: a choice in its favour that a user cannot make. Some strategies stop before their
  budget, and one that goes over what it has seen, 20 looks an evaluation, is stopped.
  Left out: {left_out}.
- *Neighbours say*, for tables: what the plan on the whole table saves if each choice is believed
  to save what the clocks on either side of it do. The rest is luck, or structure finer than the
  grid.

On a table the truth holds the very rows that were taken, so a plan never breaks its budget there,
and finding a lucky row counts as finding. On the simulator a plan that uses its
budget to the last microsecond, made on noisy samples, is often over it by a little: the cells say
in which share of runs by anything at all, and by more than 0.1 %.

At 0 % on the simulator ours may promise nothing: the fastest choice there is hardly runs faster
than auto, by less than a campaign is sure of, so the plan stays at auto and keeps the budget. The
others take the noise for the truth, and the cells say how often their plans are over the budget.
On the Titan X the plan on the whole table saves 0.3 % at 0 %, no more than single rows scatter.
"""


def page(results: Sequence[DataSetResults], budgets: Sequence[float], *, minutes: float) -> str:
    """Return the whole page."""
    head = _HEAD.format(
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}, "
        f"numpy {np.__version__}",
        version=searching_tuner.version(),
        minutes=minutes,
        seeds=searching_tuner.SEEDS,
        left_out="; ".join(f"`{n}`, for {why}" for n, why in searching_tuner.LEFT_OUT.items()),
    )
    parts = [head, _summary(results, budgets)]
    parts += [section(one, budgets) for one in results]
    return "\n".join(parts)


def _summary(results: Sequence[DataSetResults], budgets: Sequence[float]) -> str:
    lines = [
        "## In short",
        "",
        "Regret at 15 % of a table's rows, or 8 samples a kernel on the simulator; in brackets the",
        "share of the full saving reached. The paper's grid takes the samples it takes.",
        "",
        _row(
            *("data set", "evidence", "budget", "samples", "full saving", "neighbours say"),
            *(
                "adaptive",
                "best of Kernel Tuner",
                "spread evenly",
                "random",
                "the paper's grid (samples)",
            ),
        ),
        "|---" * 11 + "|",
    ]
    for one in results:
        for budget in budgets:
            best = one.ranked(budget)[0]
            coarse = one.cell("the paper's grid", one.sizes[0], budget)
            ours = one.cell("adaptive", one.middle, budget)
            cells = [one.cell(name, one.middle, budget) for name in ("spread evenly", "random")]
            lines.append(
                _row(
                    f"`{one.name}`",
                    one.evidence,
                    f"{budget:.0%}",
                    f"{one.middle}",
                    _percent(one.full[budget]),
                    "-" if one.evidence == "simulated" else _percent(one.neighbours[budget]),
                    _regret(one, ours),
                    f"{_regret(one, best)} {best.searcher}",
                    *(_regret(one, cell) for cell in cells),
                    f"{_regret(one, coarse)} ({coarse.taken:.0f})" if coarse else "-",
                )
            )
    return "\n".join(lines) + "\n"


def section(one: DataSetResults, budgets: Sequence[float]) -> str:
    """Return the part about one data set."""
    parts = [
        f"## `{one.name}`\n\n{one.gpu}, **{one.evidence}**: {one.kernels} kernels, {one.rows} rows."
    ]
    for budget in budgets:
        parts.append(
            f"### Budget {budget:.0%}: the plan on the truth saves "
            f"{_percent(one.full[budget])}, {one.evidence}"
        )
        parts.append(_by_size(one, budget))
        parts.append(_strategies(one, budget))
    parts.append(_time(one))
    return "\n\n".join(parts) + "\n"


def _names(one: DataSetResults, budget: float) -> list[str]:
    """Return searchers worth a line: ours, and those of Kernel Tuner that ran at every size."""
    own = [c.searcher for c in one.cells if c.searcher not in one.rivals]
    best = [c.searcher for c in one.ranked(budget)[:3]]
    return list(dict.fromkeys([*own, *best]))


def _by_size(one: DataSetResults, budget: float) -> str:
    heads = [f"{size} ({size / one.rows:.0%})" for size in one.sizes]
    lines = [_row("searcher", *heads), "|---" * (1 + len(heads)) + "|"]
    for name in _names(one, budget):
        cells = [one.cell(name, size, budget) for size in one.sizes]
        if cells[0] is not None and len(one.sizes) > 1 and cells[1] is None:
            taken = f"{cells[0].taken:.0f} samples: {_full(one, cells[0])}"
            lines.append(_row(name, taken, *["" for _ in heads[1:]]))
        else:
            lines.append(_row(name, *(_full(one, cell) for cell in cells)))
    return "\n".join(lines)


def _strategies(one: DataSetResults, budget: float) -> str:
    ranked = one.ranked(budget)
    items = [
        f"{strategy_of(c.searcher)} {_points(one.regret(c))}"
        + (f" ({c.taken:.0f} samples)" if c.taken < one.middle - 0.5 else "")
        for c in ranked
    ]
    return f"Kernel Tuner's at {one.middle} samples, regret: {', '.join(items)}."


def _time(one: DataSetResults) -> str:
    heads = [f"{size}" for size in one.sizes]
    lines = [
        f"GPU time in s, {one.evidence}, at a budget of 0 %:\n",
        _row("searcher", *heads),
        "|---" * (1 + len(heads)) + "|",
    ]
    for name in _names(one, 0.0):
        cells = [one.cell(name, size, 0.0) for size in one.sizes]
        lines.append(_row(name, *(f"{c.gpu_s:.0f}" if c else "" for c in cells)))
    return "\n".join(lines)


def _full(one: DataSetResults, cell: Cell | None) -> str:
    if cell is None:
        return "-"
    spread = "" if cell.spread is None else f" ± {_points(cell.spread)}"
    text = f"{_points(one.regret(cell))}{spread} ({_share(one, cell)})"
    if one.evidence == "simulated":
        text += f"; over in {cell.broke(0.0):.0%}, by > {MORE:.1%} in {cell.broke(MORE):.0%}"
    return text


def _regret(one: DataSetResults, cell: Cell | None) -> str:
    return "-" if cell is None else f"{_points(one.regret(cell))} ({_share(one, cell)})"


def _share(one: DataSetResults, cell: Cell) -> str:
    return f"{cell.saving / one.full[cell.budget]:.0%}"


def _points(fraction: float) -> str:
    return f"{100.0 * fraction + 0.0:.2f}".replace("-0.00", "0.00")


def _percent(fraction: float) -> str:
    return f"{100.0 * fraction:.2f} %"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
