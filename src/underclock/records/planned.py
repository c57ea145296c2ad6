"""A plan: clocks for every kernel of a step, where its costs come from, and what it promises."""

import contextlib
import io
import math
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Any

from underclock.errors import DataError, NotSupportedError
from underclock.records.answers import answer_of
from underclock.records.choices import (
    Accounting,
    Aggregate,
    Arm,
    Choice,
    ChosenArm,
    ClockSchedule,
    Closure,
    Cost,
    Granularity,
    LatencyPoint,
    Objective,
    Strategy,
)
from underclock.records.common import (
    SCHEMAS,
    Budget,
    Clocks,
    Evidence,
    NotNegative,
    Record,
    as_frame,
    check_agrees,
    installed,
)
from underclock.records.samples import GpuInfo, Provenance
from underclock.records.work import Step


class MatchWay(StrEnum):
    """How a kernel's costs follow from measured ones; the value is the words shown to the user."""

    SAME = "same"
    ROLE = "same role, other shape"
    KIND = "same kind"
    LINK = "unmatched, its link assumed"
    NONE = "unmatched"

    @property
    def is_told(self) -> bool:
        """Whether samples tell what clocks do to such a kernel."""
        return self not in {MatchWay.LINK, MatchWay.NONE}


class KernelMatch(Record, frozen=True, kw_only=True):
    """What one kernel's costs were carried over from."""

    way: MatchWay
    # the measured kernel of its role; ``None`` where its kind or nothing was used
    source: str | None = None
    time_spread: NotNegative  # relative standard deviation of its time at auto, as a fraction
    energy_spread: NotNegative  # the same of its energy

    def __post_init__(self) -> None:
        if (self.source is None) == (self.way in {MatchWay.SAME, MatchWay.ROLE}):
            raise ValueError(f"a kernel matched as {self.way!r} has source {self.source!r}")


class CarriedOver(Record, frozen=True, kw_only=True):
    """What a plan rests on whose step was not measured."""

    workload: str  # the step that was measured
    fingerprint: str | None = None  # of that step
    matches: dict[str, KernelMatch]  # of each kernel of the plan, by its name
    confirmed: tuple[str, ...] = ()  # kernels of the new step that were measured after all
    # time of this plan over that of one planned on samples of the step itself, as those samples
    # have both, less one; ``None`` without such samples
    regret_time: float | None = None
    regret_energy: float | None = None  # the same of energy


_SAME_W = 1.0  # drivers round what they enforce


class Plan(ChosenArm, frozen=True, kw_only=True, tag_field="kind", tag="plan"):
    """Clocks per kernel, what they promise, and what that rests on.

    Attributes:
        step: What it is for: the step, or a table's kernels.
        objective: What was minimised.
        max_slowdown: Time budget as a fraction above auto; ``None`` where time was free.
        granularity: What has clocks of its own with free switching.
        aggregate: Who keeps the budget then.
        bound: The arm that takes changes of clocks within a step as free, which no GPU can follow;
            ``None`` where none change.
        accounting: What the numbers are sums of.
        baseline: The clocks called auto; other than auto/auto where a table has no such row.
        kernels: What the plan holds of each kernel.
        fixed: The best fixed clock pair; ``None`` when infeasible.
        frontier: Choices on the lower convex hull of time and energy, at the chosen
            granularity with free switching, fastest first.
        closure: Isolated sum against in situ; ``None`` where the step was not run whole.
        provenance: How the samples came about; ``None`` when unknown.
        version: Of the program that planned; ``None`` when unknown.
        schedule: The clocks of each launch; ``None`` where each kernel keeps one pair.
        latency_range_s: Least and greatest latency reported of GPUs like this one, where it was not
            measured; the schedule keeps the greatest. ``None`` where one was planned for.
        latency_curve: What could be achieved at other latencies, shortest first; empty where
            switching was taken as free.
        achievable_frontier: What schedules under the same latency cost at other time budgets,
            fastest first; empty where switching was taken as free.
        carried: How its kernels are known, where its step was not measured; else ``None``.
    """

    schema: int = SCHEMAS["plan"]
    evidence: Evidence
    gpu: GpuInfo
    step: Step
    objective: Objective
    max_slowdown: Budget | None
    granularity: Granularity
    aggregate: Aggregate
    bound: Strategy | None = None
    accounting: Accounting = Accounting.ISOLATED
    baseline: Clocks
    kernels: dict[str, Choice]
    fixed: Clocks | None
    frontier: tuple[Cost, ...] = ()
    closure: Closure | None = None
    provenance: Provenance | None = None
    version: str | None = None
    schedule: ClockSchedule | None = None
    latency_range_s: tuple[float, float] | None = None
    latency_curve: tuple[LatencyPoint, ...] = ()
    achievable_frontier: tuple[Cost, ...] = ()
    carried: CarriedOver | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        costed = {arm.name for arm in self.arms if arm.cost is not None}
        if (self.chosen == Strategy.ACHIEVABLE) != (self.schedule is not None):
            raise ValueError(f"a schedule, and only that, is achievable: {self.chosen!r} is chosen")
        if not {self.chosen, self.bound or self.chosen} <= costed:
            raise ValueError(f"the chosen arm {self.chosen!r} has no costs")
        if "auto" not in costed:
            raise ValueError("the arm 'auto' has no costs, and everything is compared with it")
        # Reject arms that are there twice, and costs that are not what they say against auto.
        if len({arm.name for arm in self.arms}) < len(self.arms):
            raise ValueError("every arm is compared once")
        auto = self.arm("auto").cost
        curves = (point.frontier for point in self.latency_curve)
        lines = (self.frontier, self.achievable_frontier, *curves)
        costs = (*(arm.cost for arm in self.arms), *(cost for line in lines for cost in line))
        for cost in costs:
            if cost is not None and auto is not None:
                of_auto = cost.time_s / auto.time_s, cost.energy_j / auto.energy_j
                check_agrees("time_change", cost.time_change, of_auto[0] - 1.0)
                check_agrees("energy_change", cost.energy_change, of_auto[1] - 1.0)
        low, high = self.latency_range_s or (0.0, math.inf)
        if not 0.0 <= low < high:
            raise ValueError(f"a range of latencies must ascend, got {low} to {high} s")
        runs = {kernel.name for kernel in self.step.kernels}
        if unset := runs - self.kernels.keys():
            raise ValueError(f"the plan has no clocks for {min(unset)!r}, which it runs")
        if foreign := self.kernels.keys() - runs:
            raise ValueError(f"the plan has clocks for {min(foreign)!r}, which it lacks")
        launches = len(self.step.order)
        if launches and self.schedule and len(self.schedule.launch_s) != launches:
            raise ValueError(
                f"the schedule is of {len(self.schedule.launch_s)} launches, the step of {launches}"
            )

    @property
    def workload(self) -> str:
        """Name of the step, or of the table."""
        return self.step.name

    @property
    def stands_on(self) -> str:
        """Its evidence in words: of a step that was not measured, what it is carried over from."""
        return f"carried over, {self.evidence}" if self.carried else str(self.evidence)

    @property
    def headline(self) -> Arm:
        """The arm whose clocks the plan holds."""
        return self.arm(self.chosen)

    @property
    def held(self) -> dict[str, dict[Clocks, list[tuple[float, float | None]]]]:
        """What launches of each kernel take in s and J, where known, by the pair they run at."""
        order, kernels = self.step.order, self.step.kernels
        if self.schedule is None or not order:
            alike = ((each.name, self.kernels[each.name], each.count) for each in kernels)
            return {name: {each.clocks: [each.launch(n)] * n} for name, each, n in alike}
        held: dict[str, dict[Clocks, list[tuple[float, float | None]]]] = {}
        energies_j = self.schedule.launch_j or [None] * len(order)
        costs = zip(self.schedule.launch_s, energies_j, strict=True)
        for at, clocks, cost in zip(order, self.schedule.clocks, costs, strict=True):
            held.setdefault(kernels[at].name, {}).setdefault(clocks, []).append(cost)
        return held

    @property
    def launch_clocks(self) -> tuple[Clocks, ...]:
        """The pair of each launch: as scheduled, or else its kernel's; none without an order."""
        if self.schedule is not None:
            return self.schedule.clocks
        names = [kernel.name for kernel in self.step.kernels]
        return tuple(self.kernels[names[at]].clocks for at in self.step.order)

    @property
    def one_pair(self) -> Clocks | None:
        """The clock pair that all launches have; ``None`` where they have several, or no order."""
        pairs = {*self.launch_clocks}
        return pairs.pop() if len(pairs) == 1 else None

    @property
    def sets_nothing(self) -> bool:
        """Whether every launch is left at the clocks that all is compared with."""
        held = self.launch_clocks or [choice.clocks for choice in self.kernels.values()]
        return all(clocks == self.baseline for clocks in held)

    def check_gpu(self, gpu: GpuInfo, *, any_limit: bool = False) -> tuple[str, ...]:
        """Refuse to be used on a GPU it was not made for; return warnings.

        Args:
            any_limit: Whether another power limit will do.

        Raises:
            DataError: The GPU's model or power limit differs.
        """
        if self.gpu.name != gpu.name:
            hint = "clocks mean nothing on another GPU model: plan on its own samples"
            raise DataError(f"the plan is for {self.gpu.name}, this is {gpu.name}", hint=hint)
        limit_w, found_w = self.gpu.power_limit_w, gpu.power_limit_w
        read = limit_w is not None and found_w is not None and not any_limit
        if read and not math.isclose(limit_w or 0.0, found_w or 0.0, abs_tol=_SAME_W, rel_tol=0.0):
            sudo = "" if self.evidence is Evidence.SIMULATED else " (`sudo nvidia-smi -pl {:g}`)"
            raise DataError(
                f"the plan is for a power limit of {limit_w:g} W, this GPU is limited to "
                f"{found_w:g} W",
                hint="the power cap decides what clocks are worth: set the limit yourself"
                f"{sudo.format(limit_w)}, or measure and plan at this one",
            )
        if self.gpu.is_another_board(gpu):
            words = (
                f"the plan was made on board {self.gpu.uuid}, and this is board {gpu.uuid}: boards "
                "of one model differ by a few per cent; `underclock measure --near` measures the "
                "plan's clocks here"
            )
            return (words,)
        return ()

    def check_to_hold(
        self, gpu: GpuInfo, *, anyway: bool, hint: str, any_limit: bool = False
    ) -> tuple[str, ...]:
        """Refuse to be held where it was not made; return warnings.

        Args:
            anyway: Whether another board or driver will do.
            hint: What to do where it does not.
            any_limit: As of `check_gpu`.

        Raises:
            DataError: Model or power limit differ; or board or driver, and that will not do.
        """
        words = self.check_gpu(gpu, any_limit=any_limit)
        if None not in {self.gpu.driver, gpu.driver} and self.gpu.driver != gpu.driver:
            driver = f"the plan was made under driver {self.gpu.driver}, and this is {gpu.driver}"
            words = (*words, driver)
        if words and not anyway:
            raise DataError(words[0], hint=hint)
        return words

    def _repr_html_(self) -> str:
        shown, drawing = str(super()._repr_html_()), io.StringIO()
        with contextlib.suppress(NotSupportedError):
            figure = self.plot().figure
            figure.savefig(drawing, format="svg")
            installed("matplotlib.pyplot", "a drawing").close(figure)
        return shown + drawing.getvalue()

    def plot(self, axes: Any = None) -> Any:  # noqa: ANN401 - matplotlib is not needed
        """Draw energy against time: what more time would save, auto, the plan; return the axes.

        Args:
            axes: Of matplotlib, to draw on; by default new ones.

        Raises:
            NotSupportedError: matplotlib is not installed.
        """
        if axes is None:
            axes = installed("matplotlib.pyplot", "a drawing").subplots()[1]
        line = self.achievable_frontier or self.frontier
        name = "if clocks changed at once" if self.bound is self.chosen else "other time budgets"
        for label, costs, style in (
            (name, line, "-"),
            ("auto", (self.auto,), "o"),
            ("the plan", (self.promise,), "o"),
        ):
            places = [(100.0 * each.time_change, 100.0 * each.energy_change) for each in costs]
            axes.plot(*zip(*places, strict=True), style, label=label) if places else None
        axes.set(xlabel="time, change (%)", ylabel="energy, change (%)", title=self.answer[0])
        axes.legend()
        return axes

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is not needed
        """Return the clocks that it holds as a pandas DataFrame, a row per kernel and clock pair.

        ``count`` is how many of a kernel's launches in a step run at the pair; times in s and
        energies in J are of one launch, ``energy_j`` and ``saved_j`` (of all ``count``) empty where
        a schedule does not know them.

        Raises:
            NotSupportedError: pandas is not installed.
        """
        rows = []
        held = ((name, pair, each) for name, by in self.held.items() for pair, each in by.items())
        counts = {kernel.name: kernel.count for kernel in self.step.kernels}
        for name, clocks, each in held:
            auto_s, auto_j = self.kernels[name].auto_launch(counts[name])
            known = [energy_j for _, energy_j in each if energy_j is not None]
            energy_j = math.fsum(known) / len(each) if known else None
            rows.append(
                {
                    "kernel": name,
                    "count": len(each),
                    "core_mhz": clocks.core_mhz,
                    "mem_mhz": clocks.mem_mhz,
                    "time_s": math.fsum(time_s for time_s, _ in each) / len(each),
                    "energy_j": energy_j,
                    "auto_time_s": auto_s,
                    "auto_energy_j": auto_j,
                    "saved_j": None if energy_j is None else len(each) * (auto_j - energy_j),
                }
            )
        return as_frame(rows)

    @property
    def answer(self) -> tuple[str, str, str]:
        """What it saves, what that costs in time, and how sure both are; a sentence or two each."""
        return answer_of(self)


def check_clocks(held: Iterable[tuple[str, Clocks]], offered: Collection[Clocks]) -> None:
    """Refuse clocks that a GPU does not list by `DataError`, before a driver is asked to hold them.

    ``held`` is for what, and which. Where auto alone is ``offered`` nothing may be locked, of which
    the GPU itself says more.
    """
    if not any(not clocks.is_auto for clocks in offered):
        return
    for name, clocks in held:
        if clocks not in offered:
            near = sorted(
                (each for each in offered if each.mem_mhz == clocks.mem_mhz and each.core_mhz),
                key=lambda each: abs((each.core_mhz or 0) - (clocks.core_mhz or 0)),
            )
            hint = "; ".join(map(str, near[:2])) or "no core clocks with that memory clock"
            raise DataError(
                f"the plan holds {clocks} for {name}, which this GPU does not list",
                hint=f"plan on this GPU's own samples; nearest: {hint}",
            )
