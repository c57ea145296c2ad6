"""Plans, validations and scores as tables for an 80-column terminal.

Cells are `rich.text.Text`, never plain strings: rich would read ``[...]`` in a kernel name as
markup.
"""

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from underclock.records import Arm, Plan, Score, Strategy, Validation
from underclock.report.answer import (
    fixed_is_enough,
    fixed_sentence,
    headline,
    hold_commands,
    limit_sentence,
    switching_sentence,
    undo_command,
)
from underclock.report.expected import auto_plan_sentence, bound_words, lent
from underclock.report.fitting import FittingTable, bare_table
from underclock.report.latency_tables import latency_tables
from underclock.report.power_tables import power_tables
from underclock.report.ranking import joules_column, others_text, saved_text, top_savings
from underclock.report.wording import (
    accounting_text,
    arm_title,
    change_text,
    clocks_text,
    duration_text,
    energy_text,
    interval_text,
    keeping_time_text,
    margin_text,
    measured_changes,
    no_change,
    promise_text,
    status_text,
)
from underclock.units import format_mhz

_MOST_SAVINGS = 8


def arms_table(plan: Plan) -> Table:
    """Return the ways of choosing clocks side by side; the one that counts has a star."""
    table = bare_table(f"{plan.workload} on {plan.gpu.name}: {plan.evidence}")
    table.add_column("clocks chosen", overflow="fold")
    for header in ("time", "energy", "time\nper step", "energy\nper step"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for arm in plan.arms:
        counts = arm.name is plan.headline.name
        table.add_row(
            _arm_cell(plan, arm),
            Text(change_text(arm.time_change)),
            Text(change_text(arm.energy_change)),
            Text(duration_text(arm.time_s)),
            Text(energy_text(arm.energy_j)),
            Text(status_text(arm)),
            style="bold" if counts else "",
        )
    limit = "" if plan.power_limit_w is None else f" at {plan.power_limit_w:g} W"
    table.caption = Text(f"* what the plan holds; time and energy against auto{limit}")
    return table


def budgets_table(plan: Plan) -> Table:
    """Return what greater time budgets let expect."""
    table = bare_table(f"expected of greater time budgets, {bound_words(plan)}: {plan.evidence}")
    for header in ("time budget", "energy"):
        table.add_column(header, justify="right", no_wrap=True)
    for slowdown, change in lent(plan):
        table.add_row(Text(change_text(slowdown)), Text(change_text(change)))
    return table


def savings_table(plan: Plan) -> FittingTable:
    """Return the clocks of the kernels that save most of the step's energy, and the others' sum."""
    ranking = top_savings(plan, _MOST_SAVINGS)
    choices = [choice for _, choice in ranking.rows]
    unit, saved = joules_column([*(c.saved_j for c in choices), ranking.others_j])
    free = "" if plan.headline.name is plan.chosen else ", with free switching, a bound"
    table = bare_table(f"top savings of a step{free}: {plan.evidence}")
    table.add_column("kernel", overflow="fold")
    for header in ("core / mem\nMHz", f"saved\n{unit}", "time", "energy"):
        table.add_column(header, justify="right", no_wrap=True)
    for (name, choice), joules in zip(ranking.rows, saved, strict=False):
        table.add_row(
            Text(name),
            Text(f"{format_mhz(choice.core_mhz)} / {format_mhz(choice.mem_mhz)}"),
            Text(joules),
            Text(change_text(choice.time_change)),
            Text(change_text(choice.energy_change)),
        )
    if ranking.others:
        table.add_row(Text(others_text(ranking)), Text(""), Text(saved[-1]), Text(""), Text(""))
    table.caption = Text(
        f"{saved_text(plan, ranking.total_j)}; time and energy against the kernel's own at auto"
    )
    return table


def plan_tables(plan: Plan, *, brief: bool = False) -> tuple[RenderableType, ...]:
    """Return all that a terminal shows of a plan: the answer first, then what it rests on.

    Args:
        plan: The plan.
        brief: Whether the answer and the arms will do.
    """
    fixed = _fixed_lines(plan)
    first, last = (fixed, ()) if fixed_is_enough(plan) else ((), fixed)
    parts = [*_answer(plan), *first]
    if all(no_change(arm) for arm in plan.arms):
        parts += [budgets_table(plan)] if lent(plan) else []
        return (*parts, *latency_tables(plan), *power_tables(plan))
    parts.append(arms_table(plan))
    if brief:
        return (*parts, *last)
    if any(choice.saved_j > 0.0 for choice in plan.kernels.values()):
        parts.append(savings_table(plan))
    return (*parts, *last, *latency_tables(plan), *power_tables(plan))


def _answer(plan: Plan) -> tuple[RenderableType, ...]:
    """Return the answer that counts, in a few sentences."""
    lines = (
        auto_plan_sentence(plan),
        promise_text(plan),
        limit_sentence(plan),
        switching_sentence(plan),
    )
    return (
        Text(headline(plan), style="bold"),
        *(Text(line) for line in lines if line is not None),
    )


def _fixed_lines(plan: Plan) -> tuple[RenderableType, ...]:
    """Return what the best fixed clock is worth, and what to paste to hold it."""
    sentence = fixed_sentence(plan)
    if sentence is None or plan.fixed is None:
        return ()
    return (
        Text(f"{sentence}; to hold it on GPU 0 (undo: {undo_command(plan.fixed)})"),
        # Never wrapped, for these lines are to be pasted.
        *(Text(f"  {line}", no_wrap=True) for line in hold_commands(plan.fixed)),
    )


def validation_table(validation: Validation) -> Table:
    """Return what was promised against what all pairs of repeats gave."""
    table = bare_table(
        f"{validation.workload} on {validation.gpu.name}, run again: {validation.evidence}"
    )
    table.add_column("")
    for header in ("promised", "mean", "95 %\ninterval", "best\npair", "worst\npair"):
        table.add_column(header, justify="right", no_wrap=True)
    for name, promised, spread, interval in measured_changes(validation):
        changes = (spread.best, spread.worst)
        table.add_row(
            Text(name.replace(", ", ",\n  ")),
            Text(change_text(promised)),
            Text(change_text(spread.mean)),
            Text(interval_text(interval)),
            *(Text(change_text(change)) for change in changes),
        )
    pairs = validation.repeats**2
    table.caption = Text(
        f"{accounting_text(validation)}\n"
        f"of {pairs} pairs, {validation.pairs_keeping_energy} save the promised energy; "
        f"{keeping_time_text(validation)}"
    )
    return table


def score_table(score: Score) -> Table:
    """Return what a plan promised against what its clocks cost on a full table."""
    table = bare_table(
        f"{score.plan} on {score.gpu.name}, promised against actual: {score.evidence}"
    )
    table.add_column("")
    for header in ("promised", "actual", "auto\nper step", "plan\nper step"):
        table.add_column(header, justify="right", no_wrap=True)
    auto = next((arm for arm in score.arms if arm.name is Strategy.AUTO), None)
    given = next((arm for arm in score.arms if arm.name is score.plan), None)
    if given is None or given.energy_interval is None:
        table.caption = Text("actual: of this table, its means taken for the truth")
    else:
        table.caption = Text("actual: with 95 %, as the table's repeats leave it")
    table.add_row(
        Text("time"),
        Text(change_text(score.promised_time_change)),
        Text(change_text(score.time_change) + margin_text(given.time_interval if given else None)),
        Text(duration_text(auto.time_s if auto else None)),
        Text(duration_text(score.time_s)),
    )
    table.add_row(
        Text("energy"),
        Text(change_text(score.promised_energy_change)),
        Text(
            change_text(score.energy_change) + margin_text(given.energy_interval if given else None)
        ),
        Text(energy_text(auto.energy_j if auto else None)),
        Text(energy_text(score.energy_j)),
    )
    return table


def _arm_cell(plan: Plan, arm: Arm) -> Text:
    """Name the arm; under the best fixed clock write which clock that is."""
    counts = arm.name is plan.headline.name
    cell = Text(f"{'*' if counts else ' '} {arm_title(arm.name)}")
    if arm.name is plan.chosen and not counts:
        cell.append("\n  a bound: free switching", style="dim")
    if arm.name is Strategy.BEST_FIXED and plan.fixed is not None:
        cell.append(f"\n  {clocks_text(plan.fixed)}", style="dim")
    return cell
