"""Clocks for the steps of a server: for each the least energy within its budget, one clock a step.

A budget is of the time of a step, against auto or in seconds: a step of decode, or of both in one
launch, makes a token of every sequence, so its time is the time per output token; a step of prefill
is what the first token waits for. A cost keeps a budget where the upper end of its 95 % interval
does. Auto keeps every budget that is against auto.

The best clock for all of them is named too, each step's energy against its own at auto counting
alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from underclock.records import Clocks, Pass
from underclock.records.common import Record, check_not_negative, check_positive
from underclock.records.serving import ServingBucket, ServingCost
from underclock.units import format_duration, format_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStep:
    """A step of a server, and what it costs."""

    phase: Pass
    batch: int  # sequences
    context: int  # tokens that each of them attends to; of prefill, of the prompt
    tokens: int  # tokens that it makes (decode) or reads
    costs: tuple[ServingCost, ...]  # auto first, then locked clocks


class ServingBudget(Record, frozen=True, kw_only=True):
    """How long steps may take."""

    # above auto, as a fraction; ``None`` for no limit of that kind
    max_slowdown: float | None = None
    tpot_s: float | None = None  # per output token; ``None`` for no limit
    ttft_s: float | None = None  # to the first token, a prompt's step; ``None`` for no limit
    # by what fraction one step in a hundred takes longer than they do on average, where limits in
    # seconds are of such a step; ``None`` where they are of the average
    tail: float | None = None

    def __post_init__(self) -> None:
        if self.max_slowdown is not None and not -1 < self.max_slowdown < 1:
            raise ValueError(f"max_slowdown must be above -1 and below 1, got {self.max_slowdown}")
        check_positive(self, "tpot_s", "ttft_s")
        check_not_negative(self, "tail")

    def limit_s(self, phase: Pass) -> tuple[str, float | None]:
        """Return the name of what limits a phase in seconds, and the limit."""
        return ("ttft", self.ttft_s) if phase is Pass.PREFILL else ("tpot", self.tpot_s)

    def late_s(self, cost: ServingCost) -> float:
        """Return what counts against a limit in seconds: the latest that a step is taken to be."""
        return cost.time_interval_s[1] * (1.0 + (self.tail or 0.0))

    def keeps(self, cost: ServingCost, step: ServedStep) -> bool:
        """Whether a cost of a step keeps the budget."""
        auto, limit_s = step.costs[0], self.limit_s(step.phase)[1]
        if limit_s is not None and self.late_s(cost) > limit_s:
            return False
        if self.max_slowdown is None:
            return True
        if cost.clocks.is_auto:
            return self.max_slowdown >= 0.0
        return cost.time_interval_s[1] <= (1.0 + self.max_slowdown) * auto.time_s


def served(
    steps: Sequence[ServedStep], budget: ServingBudget
) -> tuple[tuple[ServingBucket, ...], Clocks | None]:
    """Choose clocks for every step of a server, and the best clocks for all of them.

    Args:
        steps: No two of one phase, batch and context.

    Returns:
        A bucket for each step, by phase, batch and context; and the clocks that are best where
        nothing changes them, ``None`` where none keeps the budget of every step.
    """
    steps = sorted(steps, key=lambda step: (step.phase, step.batch, step.context))
    ratios: dict[Clocks, list[float]] = {}
    for step in steps:
        for cost in step.costs[1:]:
            if budget.keeps(cost, step):
                share = cost.energy_j / step.costs[0].energy_j
                ratios.setdefault(cost.clocks, []).append(share)
    everywhere = {clocks: sum(of) for clocks, of in ratios.items() if len(of) == len(steps)}
    fixed = min(everywhere, key=lambda clocks: everywhere[clocks], default=None)
    buckets = []
    for step in steps:
        kept = [cost for cost in step.costs if budget.keeps(cost, step)]
        least = min(step.costs, key=budget.late_s)
        buckets.append(
            ServingBucket(
                pass_=step.phase,
                batch=step.batch,
                context=step.context,
                tokens=step.tokens,
                auto=step.costs[0],
                chosen=min(kept, key=lambda cost: cost.energy_j) if kept else least,
                fixed=next((cost for cost in step.costs if cost.clocks == fixed), None),
                frontier=frontier(step.costs),
                obstacle="" if kept else _obstacle(step, budget, least),
            )
        )
    return tuple(buckets), fixed


def _obstacle(step: ServedStep, budget: ServingBudget, least: ServingCost) -> str:
    """Say which budget of a step no clocks keep, and which they would at the least."""
    at = "auto" if least.clocks.is_auto else str(least.clocks)
    name, limit_s = budget.limit_s(step.phase)
    late_s = budget.late_s(least)
    if limit_s is not None and late_s > limit_s:
        return (
            f"no clocks keep {name} {format_duration(limit_s)}: "
            f"{format_duration(late_s)} at {at} is the least"
        )
    change = least.time_interval_s[1] / step.costs[0].time_s - 1.0
    return (
        f"no clocks change time by {format_percent(budget.max_slowdown or 0.0)} or less: "
        f"{format_percent(change)} at {at} is the least"
    )


def frontier(costs: Sequence[ServingCost]) -> tuple[ServingCost, ...]:
    """Return the costs that no other beats in both time and energy, fastest first."""
    best: list[ServingCost] = []
    for cost in sorted(costs, key=lambda each: (each.time_s, each.energy_j)):
        if not best or cost.energy_j < best[-1].energy_j:
            best.append(cost)
    return tuple(best)
