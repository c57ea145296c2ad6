"""Plans, a server's plans and validations as tables for an 80-column terminal."""

import math
from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from underclock.records import Arm, Clocks, Plan, Strategy, Validation
from underclock.records.answers import answer_of, no_change
from underclock.records.serving import Basis, ServingBucket, ServingCost, ServingPlan
from underclock.report import answer, wording
from underclock.report.terminal import filled, numbers, words
from underclock.units import format_duration, format_mhz, format_percent

_MOST_SAVINGS = 8


def plan_parts(
    plan: Plan,
    file: str,
    train: str = "",
    *,
    details: bool = False,
    validation: Validation | None = None,
) -> tuple[RenderableType, ...]:
    """Return the answer in three lines, the line with the next command, and the details if asked.

    ``train`` is the command that trains; empty where it is not known.
    """
    saves, *more = answer_of(plan, validation)
    more.append(answer.next_sentence(plan, file, train))
    lines = Text(saves, style="bold"), *map(Text, more)
    if not details:
        return lines
    judged = validation_parts(validation) if validation else ()
    return (*lines, *plan_details(plan), *judged)


def plan_details(plan: Plan) -> tuple[RenderableType, ...]:
    """Return what a plan's answer rests on: ways of choosing clocks, kernels, energy, latencies."""
    fixed: list[Text] = []
    sentence = answer.fixed_sentence(plan)
    if sentence is not None and plan.fixed is not None:
        if answer.can_be_held_by_hand(plan):
            sentence += f"; to hold it on GPU 0 (undo: {answer.undo_command(plan.fixed)})"
            # Never wrapped, for these lines are to be pasted.
            fixed = [Text(f"  {line}", no_wrap=True) for line in answer.hold_commands(plan.fixed)]
        fixed.insert(0, Text(sentence))
    said = (
        answer.auto_plan_sentence(plan),
        answer.carried_sentence(plan),
        answer.strict_sentence(plan),
    )
    parts: list[RenderableType] = [*(Text(line) for line in said if line is not None), *fixed]
    budgets = [
        (wording.change_text(slower), wording.change_text(saved))
        for slower, saved in answer.larger_budgets(plan)
    ]
    if not all(no_change(arm) for arm in plan.arms):
        parts.append(arms_table(plan))
        if any(choice.saved_j > 0.0 for choice in plan.kernels.values()):
            parts.append(savings_table(plan))
    elif budgets:
        title = f"expected of greater time budgets, {answer.bound_words(plan)}: {plan.stands_on}"
        parts.append(filled(title, numbers("time budget", "energy"), budgets))
    shares = [
        (name, str(launches), f"{time_share:.1%}", f"{energy_share:.1%}")
        for name, launches, time_share, energy_share in answer.energy_parts(plan)
    ]
    if shares:
        title = f"where a step's energy goes at {wording.auto_word(plan)}: {plan.stands_on}"
        columns = (*words("pass or operator"), *numbers("launches", "of\ntime", "of\nenergy"))
        parts.append(filled(title, columns, shares, answer.auto_clock_sentence(plan)))
    if answer.has_latencies(plan):
        title = f"achievable on {plan.gpu.name} if clocks took this long: {plan.stands_on}"
        of = (*numbers("latency", "time", "energy", "switches\nper step"), *words("known hardware"))
        points = (
            (
                wording.duration_text(point.latency_s),
                wording.change_text(point.time_change),
                wording.change_text(point.energy_change),
                "-" if point.switches is None else str(point.switches),
                point.hardware,
            )
            for point in plan.latency_curve
        )
        own = ""
        if (held := plan.schedule) is not None:
            own = f"this plan's own latency: {held.latency}, {held.switches} switches per step"
        parts.append(filled(title, of, points, own))
    return tuple(parts)


def arms_table(plan: Plan) -> Table:
    """Return the ways of choosing clocks side by side; the one that counts has a star."""
    return filled(
        f"{plan.workload} on {plan.gpu.name}: {plan.stands_on}",
        (
            *words("clocks chosen"),
            *numbers("time", "energy", "time\nper step", "energy\nper step"),
            Column("status", no_wrap=True),
        ),
        (
            (
                _arm_cell(plan, arm),
                wording.change_text(arm.time_change),
                wording.change_text(arm.energy_change),
                wording.duration_text(None if arm.cost is None else arm.cost.time_s),
                wording.energy_text(None if arm.cost is None else arm.cost.energy_j),
                wording.status_text(arm),
            )
            for arm in plan.arms
        ),
        f"* what the plan holds; time and energy against {wording.auto_word(plan)}",
        bold=plan.arms.index(plan.headline),
    )


def _arm_cell(plan: Plan, arm: Arm) -> Text:
    cell = Text(f"{'*' if arm.name is plan.chosen else ' '} {wording.arm_title(arm.name, plan)}")
    if arm.name is plan.bound:
        cell.append("\n  a bound: at once", style="dim")
    if arm.name is Strategy.BEST_FIXED and plan.fixed is not None:
        cell.append(f"\n  {wording.clocks_text(plan.fixed)}", style="dim")
    return cell


def savings_table(plan: Plan) -> Table:
    """Return the clocks of the kernels that save most energy, and the sum of the rest."""
    (top, rest), held = answer.top_savings(plan, _MOST_SAVINGS), plan.held
    rest_j = sum(choice.saved_j for choice in rest.values())
    total_j = sum(choice.saved_j for choice in plan.kernels.values())
    unit, saved = answer.joules_column([*(choice.saved_j for choice in top.values()), rest_j])
    free = ", if clocks changed at once, a bound" if plan.bound is plan.chosen else ""
    rows = [
        (
            name,
            " / ".join(_range_text(held[name], which) for which in ("core_mhz", "mem_mhz")),
            joules,
            wording.change_text(choice.time_change),
            wording.change_text(choice.energy_change),
        )
        for (name, choice), joules in zip(top.items(), saved, strict=False)
    ]
    if rest:
        name = "1 other" if len(rest) == 1 else f"{len(rest)} others"
        rows.append((name, "", saved[-1], "", ""))
    return filled(
        f"top savings of a step{free}: {plan.stands_on}",
        (*words("kernel"), *numbers("core / mem\nMHz", f"saved\n{unit}", "time", "energy")),
        rows,
        f"{answer.saved_text(plan, total_j)}; time and energy against the kernel's own at "
        f"{wording.auto_word(plan)}",
    )


def _range_text(pairs: Iterable[Clocks], name: str) -> str:
    clocks = sorted({getattr(pair, name) for pair in pairs}, key=lambda mhz: mhz or math.inf)
    return " to ".join(map(format_mhz, dict.fromkeys((clocks[0], clocks[-1]))))


def validation_table(validation: Validation) -> Table:
    """Return what was promised against what all pairs of repeats gave."""
    pairs = validation.repeats**2
    return filled(
        f"{validation.workload} on {validation.gpu.name}, run again: {validation.evidence}",
        (*words(""), *numbers("promised", "mean", "95 %\ninterval", "best\npair", "worst\npair")),
        (
            (
                name.replace(", ", ",\n  "),
                wording.change_text(promised),
                wording.change_text(spread.mean),
                wording.interval_text(interval),
                wording.change_text(spread.best),
                wording.change_text(spread.worst),
            )
            for name, promised, spread, interval in wording.measured_changes(validation)
        ),
        f"{wording.accounting_text(validation)}\n"
        f"of {pairs} pairs, {validation.pairs_keeping_energy} save the promised energy; "
        f"{wording.keeping_time_text(validation)}",
    )


def validation_parts(validation: Validation) -> tuple[RenderableType, ...]:
    """Return what was promised, what was measured, and the verdict."""
    if validation.repeats == 0:
        return validation.warnings
    return validation_table(validation), f"verdict: {wording.verdict_text(validation)}"


def serving_tables(plan: ServingPlan) -> tuple[RenderableType, ...]:
    """Return the table of clocks, what they change, and the best fixed clock."""
    modelled = any(each.chosen.basis is Basis.MODELLED for each in plan.buckets)
    limits = {"tpot": plan.tpot_s, "ttft": plan.ttft_s}
    said = [f"{name} {format_duration(each)}" for name, each in limits.items() if each is not None]
    if said and plan.quantile > 0.5:  # noqa: PLR2004 - the median
        said[-1] += f" at p{100 * plan.quantile:.0f}"
    if plan.max_slowdown is not None:
        said.append(f"at most {format_percent(plan.max_slowdown).removeprefix('+')} slower")
    table = filled(
        f"{plan.workload} on {plan.gpu.name}: {plan.evidence}; {', '.join(said)}",
        (
            *words("step"),
            *numbers("clock", "time", "energy", "(95 %)", "fixed", "at auto", "a token"),
        ),
        map(_row, plan.buckets),
        "MHz; changes of time and of energy a token against auto; fixed: energy at the best fixed "
        "clock" + ("; * as the model has it, nothing ran there" if modelled else ""),
    )
    changes = [each.energy_change for each in plan.buckets]
    fixed = "no fixed clock keeps the budget of every step"
    if plan.fixed is not None:
        of = [_change(each.fixed, each) for each in plan.buckets]
        fixed = f"one clock for all, {format_mhz(plan.fixed.core_mhz)} MHz, saves {_savings(of)}"
    saves = f"Saves {_savings(changes)} of energy a token, step by step; {fixed}"
    return (
        Text(saves, style="bold"),
        table,
        *(
            Text(f"{each.pass_} {each.batch} x {each.context}: {each.obstacle}")
            for each in plan.buckets
            if each.obstacle
        ),
    )


def _savings(changes: Sequence[float]) -> str:
    low, high = (f"{-100.0 * each + 0.0:.1f}" for each in (max(changes), min(changes)))
    return f"{low} to {high} %"


def _row(bucket: ServingBucket) -> tuple[str, ...]:
    chosen, auto = bucket.chosen, bucket.auto
    low_j, high_j = chosen.energy_interval_j
    return (
        f"{bucket.pass_} {bucket.batch} x {bucket.context}",
        format_mhz(chosen.clocks.core_mhz) + "*" * (chosen.basis is Basis.MODELLED),
        wording.change_text(bucket.time_change),
        wording.change_text(bucket.energy_change),
        "" if chosen.clocks.is_auto else f"± {50.0 * (high_j - low_j) / auto.energy_j:.2f}",
        "" if bucket.fixed is None else wording.change_text(_change(bucket.fixed, bucket)),
        wording.duration_text(auto.time_s),
        wording.energy_text(auto.energy_j / bucket.tokens),
    )


def _change(cost: ServingCost | None, bucket: ServingBucket) -> float:
    return 0.0 if cost is None else cost.energy_j / bucket.auto.energy_j - 1.0
