"""A server's plan, as a terminal shows it: ten lines for a small table."""

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from underclock.records.serving import Basis, ServingBucket, ServingCost, ServingPlan
from underclock.report.terminal import filled, numbers, words
from underclock.report.wording import change_text, duration_text, energy_text
from underclock.units import format_duration, format_mhz, format_percent


def serving_tables(plan: ServingPlan) -> tuple[RenderableType, ...]:
    """Return the table of clocks, what they change, and the best fixed clock beside it."""
    rows = [_row(each) for each in plan.buckets]
    modelled = any(each.chosen.basis is Basis.MODELLED for each in plan.buckets)
    table = filled(
        f"{plan.workload} on {plan.gpu.name}: {plan.evidence}; {_budget(plan)}",
        (
            *words("step"),
            *numbers("clock", "time", "energy", "(95 %)", "fixed", "at auto", "a token"),
        ),
        rows,
        "MHz; changes of time and of energy a token against auto; fixed: energy at the best fixed "
        "clock" + ("; * as the model has it, nothing ran there" if modelled else ""),
    )
    return (Text(_answer(plan), style="bold"), table, *map(Text, _obstacles(plan.buckets)))


def _answer(plan: ServingPlan) -> str:
    """Say what the table saves, and what the best fixed clock does."""
    changes = [each.energy_change for each in plan.buckets]
    fixed = "no fixed clock keeps the budget of every step"
    if plan.fixed is not None:
        of = [_change(each.fixed, each) for each in plan.buckets]
        fixed = (
            f"one clock for all, {format_mhz(plan.fixed.core_mhz)} MHz, "
            f"{change_text(min(of))} to {change_text(max(of))}"
        )
    return f"{change_text(min(changes))} to {change_text(max(changes))} energy a token; {fixed}"


def _row(bucket: ServingBucket) -> tuple[str, ...]:
    chosen, auto = bucket.chosen, bucket.auto
    low_j, high_j = chosen.energy_interval_j
    return (
        f"{bucket.pass_} {bucket.batch} x {bucket.context}",
        format_mhz(chosen.clocks.core_mhz) + "*" * (chosen.basis is Basis.MODELLED),
        change_text(bucket.time_change),
        change_text(bucket.energy_change),
        "" if chosen.clocks.is_auto else f"± {50.0 * (high_j - low_j) / auto.energy_j:.2f}",
        "" if bucket.fixed is None else change_text(_change(bucket.fixed, bucket)),
        duration_text(auto.time_s),
        energy_text(auto.energy_j / bucket.tokens),
    )


def _change(cost: ServingCost | None, bucket: ServingBucket) -> float:
    return 0.0 if cost is None else cost.energy_j / bucket.auto.energy_j - 1.0


def _budget(plan: ServingPlan) -> str:
    limits = {"tpot": plan.tpot_s, "ttft": plan.ttft_s}
    said = [f"{name} {format_duration(each)}" for name, each in limits.items() if each is not None]
    if said and plan.quantile > 0.5:  # noqa: PLR2004 - the median
        said[-1] += f" at p{100 * plan.quantile:.0f}"
    if plan.max_slowdown is not None:
        said.append(f"at most {format_percent(plan.max_slowdown).removeprefix('+')} slower")
    return ", ".join(said)


def _obstacles(buckets: Iterable[ServingBucket]) -> Iterable[str]:
    for each in buckets:
        if each.obstacle:
            yield f"{each.pass_} {each.batch} x {each.context}: {each.obstacle}"
