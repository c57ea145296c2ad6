"""Kernels by the joules of a step that their clocks save, the greatest savings first."""

from collections.abc import Sequence
from dataclasses import dataclass

from underclock.records import Choice, Plan, Strategy
from underclock.report.wording import energy_unit

_MOST_OF_IT = 0.9  # of all that is saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The kernels that save most, and what all others save together.

    Attributes:
        rows: Kernels and their choices, greatest saving first; each saves something.
        others: How many kernels are not among them.
        others_j: What those save together; negative where they cost energy.
        total_j: What all kernels save together.
    """

    rows: tuple[tuple[str, Choice], ...]
    others: int
    others_j: float
    total_j: float


def by_savings(plan: Plan) -> list[tuple[str, Choice]]:
    """Return every kernel, greatest saving first; equal ones stay in the plan's order."""
    return sorted(plan.kernels.items(), key=lambda item: -item[1].saved_j)


def top_savings(plan: Plan, most: int) -> Ranking:
    """Return the kernels that save nine tenths of what is saved, but no more than ``most``."""
    everything = by_savings(plan)
    enough_j = _MOST_OF_IT * sum(max(choice.saved_j, 0.0) for _, choice in everything)
    rows: list[tuple[str, Choice]] = []
    for name, choice in everything[:most]:
        if choice.saved_j <= 0.0 or sum(row.saved_j for _, row in rows) >= enough_j:
            break
        rows.append((name, choice))
    others_j = sum(choice.saved_j for _, choice in everything[len(rows) :])
    return Ranking(
        rows=tuple(rows),
        others=len(everything) - len(rows),
        others_j=others_j,
        total_j=sum(choice.saved_j for _, choice in everything),
    )


def saved_text(plan: Plan, total_j: float) -> str:
    """Say what all kernels save by themselves, and what the step saves with their clocks.

    The two differ where the step is not the sum of its kernels: they share one power cap.
    """
    auto, chosen = plan.arm(Strategy.AUTO).energy_j, plan.arm(plan.chosen).energy_j
    if auto is None or chosen is None:
        raise AssertionError("checked when the plan was made")
    free = "" if plan.headline.name is plan.chosen else " if clocks changed for free, a bound"
    unit, (kernels, step) = joules_column([total_j, auto - chosen])
    if kernels == step:
        return f"{step} {unit} of a step are saved{free}"
    return (
        f"{step} {unit} of a step are saved{free}; kernels by themselves add up to {kernels} {unit}"
    )


def joules_column(values_j: Sequence[float]) -> tuple[str, list[str]]:
    """Return the unit of the greatest of some energies, and all of them in it, without it."""
    unit, size = energy_unit(max((abs(value) for value in values_j), default=0.0))
    return unit, [f"{round(value / size, 2) + 0.0:.2f}" for value in values_j]


def others_text(ranking: Ranking) -> str:
    """Name the kernels that are not listed."""
    return "1 other" if ranking.others == 1 else f"{ranking.others} others"
