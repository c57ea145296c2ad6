"""What a campaign measures: the clock pairs of each kernel, and one GPU's share of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from underclock.campaign.recording import Recorder, WindowPolicy
from underclock.core.design import Wanted
from underclock.core.planning.best_choice import Goal
from underclock.core.step.whole_step import WHOLE_STEPS
from underclock.errors import NotSupportedError, UsageError
from underclock.hw.base import Capability, Measurer
from underclock.records import AUTO, Clocks, Kernel, Plan, Provenance, SampleSet, Step, Window
from underclock.units import format_mhz, member


class Grid(StrEnum):
    """Which clock pairs to visit."""

    ADAPTIVE = "adaptive"  # a few for all kernels, then whatever the plan hangs on
    COARSE = "coarse"  # core every 210 MHz, every memory clock, auto: the paper's grid
    FULL = "full"  # every pair the driver lists


class ClockControl(StrEnum):
    """How kernels come to run at other clocks than the driver's."""

    LOCK = "lock"  # clocks are held
    STEER = "steer"  # co-load makes the driver choose them


PRECISION = 0.01
SLOWDOWNS = (0.0, 0.01)
STEERING_S = 600.0
"""Time limit of a campaign that steers, by default."""
REFINES_S = 1200.0  # GPU time after the first looks, at most, where no limit was named
_COARSE_STEP_MHZ = 210
_NEAR = 0.05  # of a planned core clock: how far off the clock pairs beneath and above are

Points = list[tuple[Clocks, list[Kernel]]]
"""Clock pairs, and the kernels to measure at each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What to visit."""

    grid: Grid | None = None
    """By default adaptive; coarse where clocks or repeats are named, or a table is replayed."""
    clocks: ClockControl | None = None
    """By default clocks are held, and steered where they may not be."""
    core_mhz: tuple[int | None, ...] = ()
    """Visit only these core clocks, whatever the grid; ``None`` is auto."""
    mem_mhz: tuple[int | None, ...] = ()
    """Visit only these memory clocks, whatever the grid; ``None`` is auto."""
    repeats: int = 1
    """Measurements of each kernel at each pair."""
    in_situ: bool = True
    """Also run the whole step at auto, to settle what auto costs; without it a plan's baseline is
    the sum of isolated kernels, as in arXiv 2601.08539."""
    precision: float = PRECISION
    """An adaptive campaign ends when its promise is this sure: half the width of the 95 % interval
    of the energy change, as a fraction of auto."""
    time_limit_s: float | None = None
    """Or when this much of the GPU's time is spent."""
    max_samples: int | None = None
    """Or this many samples are on file."""
    slowdowns: tuple[float, ...] = SLOWDOWNS
    """The time budgets of the plans that an adaptive campaign measures for."""
    share: tuple[int, int] = (0, 1)
    """Which of how many shares of the kernels, and of the runs of the whole step, is measured."""
    near: Plan | None = None
    """Visit auto and the clocks near this plan's only: on another GPU of its model."""

    def __post_init__(self) -> None:
        """Read a grid given as text; reject campaigns that measure nothing."""
        for name, kinds in (("grid", Grid), ("clocks", ClockControl)):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, member(kinds, given, name))
        if self.clocks is ClockControl.STEER:
            if self.grid in {Grid.COARSE, Grid.FULL}:
                raise UsageError(f"a {self.grid} grid is of clocks that are held, not steered")
            if self.core_mhz or self.mem_mhz or self.repeats > 1:
                raise UsageError("steering sets no clocks: it decides itself what to visit")
        if not self.precision > 0:
            raise UsageError(f"precision must be positive, got {self.precision}")
        if self.time_limit_s is not None and not self.time_limit_s > 0:
            raise UsageError(f"the time limit must be positive, got {self.time_limit_s} s")
        if self.max_samples is not None and self.max_samples < 1:
            raise UsageError(f"max_samples must be at least 1, got {self.max_samples}")
        if self.grid in {Grid.COARSE, Grid.FULL} and self.is_limited:
            raise UsageError(f"a {self.grid} grid takes no limit: it is measured whole")
        self._check_goals()
        if self.near is not None:
            if self.grid in {Grid.COARSE, Grid.FULL} or self.clocks is ClockControl.STEER:
                raise UsageError("near a plan, an adaptive campaign holds its clocks: name no grid")
            if self.core_mhz or self.mem_mhz or self.repeats > 1:
                raise UsageError("near a plan, only its clocks are measured: name no clocks")
        if self.repeats < 1:
            raise UsageError(f"repeats must be at least 1, got {self.repeats}")
        if self.grid is Grid.ADAPTIVE and self.repeats > 1:
            raise UsageError("an adaptive campaign decides on repeats itself")

    def _check_goals(self) -> None:
        if not self.slowdowns or not all(-1.0 < each < 1.0 for each in self.slowdowns):
            raise UsageError(
                "time budgets are fractions above -1 and below 1, such as 0.01 for 1 %, and at "
                f"least one; got {self.slowdowns}"
            )
        adapts = self.may_adapt and self.clocks is not ClockControl.STEER
        if self.slowdowns != SLOWDOWNS and not adapts:
            raise UsageError(
                "only an adaptive campaign at held clocks measures for a time budget: grids and "
                "steering measure for every plan"
            )

    @property
    def goals(self) -> tuple[Goal, ...]:
        """What the plans that an adaptive campaign measures for minimise."""
        return tuple(Goal(max_slowdown=each) for each in self.slowdowns)

    def check_goal(self, measurer: Measurer) -> None:
        """Refuse a time budget that a measurer cannot measure for.

        Raises:
            UsageError: All plans get the same samples there, or nothing can be learned of this one.
        """
        if self.slowdowns == SLOWDOWNS:
            return
        if self.on(measurer) is not Grid.ADAPTIVE:
            raise UsageError(
                "the table is replayed whole, so it is not measured for a time budget",
                hint="--max-samples N takes the rows that such a plan hangs on",
            )
        if self.steers(measurer):
            raise UsageError(
                "clocks are steered here, and steering does not measure for a time budget: its "
                "samples serve every plan",
                hint="leave it away; `underclock plan` takes it",
            )

    def steers(self, measurer: Measurer) -> bool:
        """Whether clocks are steered by co-load on a measurer.

        Raises:
            NotSupportedError: They were to be, and it cannot run kernels with co-load.
        """
        able = Capability.MIX in measurer.capabilities
        if self.clocks is ClockControl.STEER:
            if not able:
                raise NotSupportedError(
                    "clocks cannot be steered here: that takes a GPU that runs kernels",
                    hint="leave --grid away",
                )
            return True
        held = Capability.LOCK in measurer.capabilities or self.clocks is ClockControl.LOCK
        return able and not held and self.grid in {None, Grid.ADAPTIVE} and self.may_adapt

    def limit_s(self, *, steers: bool) -> float | None:
        """Return when a campaign ends at the latest, in the GPU's time; ``None`` for never."""
        return STEERING_S if steers and self.time_limit_s is None else self.time_limit_s

    @property
    def refines_s(self) -> float:
        """GPU time after the first looks, at most; infinite where a limit was named."""
        return math.inf if self.is_limited else REFINES_S

    @property
    def is_limited(self) -> bool:
        """Whether time or samples end this campaign."""
        return self.time_limit_s is not None or self.max_samples is not None

    @property
    def may_adapt(self) -> bool:
        """Whether this campaign is adaptive on a GPU; a table may still be replayed whole."""
        if self.clocks is ClockControl.STEER or self.near is not None:
            return True
        named = bool(self.core_mhz or self.mem_mhz) or self.repeats > 1
        return self.grid is Grid.ADAPTIVE or (self.grid is None and (self.is_limited or not named))

    def on(self, measurer: Measurer) -> Grid:
        """Return the grid of this campaign on a measurer."""
        if self.grid is not None:
            return self.grid
        if self.clocks is ClockControl.STEER:
            return Grid.ADAPTIVE
        able = Capability.RUN in measurer.capabilities or self.is_limited
        return Grid.ADAPTIVE if self.may_adapt and able else Grid.COARSE


def settings_of(measurer: Measurer, campaign: Campaign) -> tuple[Clocks, ...]:
    """Return the clock pairs a campaign visits, or may reach: auto first, then fastest first.

    Raises:
        UsageError: It names clocks the GPU lacks.
    """
    if campaign.steers(measurer):
        listed = sorted(measurer.core_clocks(), reverse=True)
        return (AUTO, *(Clocks(core_mhz=mhz) for mhz in listed))
    offered = measurer.settings()
    wanted, listed = campaign.core_mhz, sorted({c.core_mhz for c in offered if c.core_mhz})
    coarse = campaign.on(measurer) is Grid.COARSE and Capability.RUN in measurer.capabilities
    if coarse and listed and not wanted:
        steps = range(listed[0], listed[-1] + 1, _COARSE_STEP_MHZ)
        wanted = (None, *(min(listed, key=lambda c: abs(c - mhz)) for mhz in steps))
    chosen = [
        clocks
        for clocks in offered
        if clocks == AUTO
        or (
            (not wanted or clocks.core_mhz in wanted)
            and (not campaign.mem_mhz or clocks.mem_mhz in campaign.mem_mhz)
        )
    ]
    for name, asked in (("core", campaign.core_mhz), ("memory", campaign.mem_mhz)):
        known = {c.core_mhz if name == "core" else c.mem_mhz for c in offered}
        for mhz in asked:
            if mhz not in known:
                near = sorted(
                    (k for k in known if k is not None), key=lambda k: abs(k - (mhz or 0))
                )
                raise UsageError(
                    f"this GPU has no {name} clock of {format_mhz(mhz)} MHz",
                    hint=f"nearest: {', '.join(map(str, sorted(near[:3]))) or 'none'}",
                )
    return tuple(
        sorted(chosen, key=lambda clocks: (not clocks.is_auto, *(-r for r in clocks.rank)))
    )


def survey(
    measurer: Measurer, step: Step | None, campaign: Campaign, provenance: Provenance | None = None
) -> tuple[SampleSet, Points]:
    """Decide what to measure, in what order, and what the file's header says of it.

    Raises:
        UsageError: No kernels, or some that the measurer has no answer for.
    """
    name, kernels = measurer.brings()
    if step is not None:
        name, kernels = step.name, step.kernels
    elif not kernels:
        raise UsageError(
            "this GPU needs a step to run", hint="make one with `underclock trace gpt3-xl`"
        )
    adaptive = campaign.on(measurer) is Grid.ADAPTIVE
    settings = settings_of(measurer, campaign)
    unlockable: tuple[str, ...] = ()
    steered = campaign.steers(measurer)
    first = next((clocks for clocks in settings if clocks.mem_mhz is not None), None)
    if first and adaptive and Capability.RUN in measurer.capabilities and not steered:
        try:
            with measurer.hold(first):
                pass
        except NotSupportedError:
            # The driver takes no memory locks, which no query lists: it keeps the memory clock.
            settings = tuple(clocks for clocks in settings if clocks.mem_mhz is None)
            words = "this GPU takes no memory locks: only core clocks are measured and planned"
            unlockable = (words,)
    if campaign.near is not None:
        # Keep auto, and the clock pairs that a plan holds or that are 5 % off those.
        planned = {pair for by in campaign.near.held.values() for pair in by}
        at_auto = (choice.auto_core_mhz for choice in campaign.near.kernels.values())
        planned |= {Clocks(core_mhz=mhz) for mhz in at_auto if mhz}
        kept = {AUTO}
        for clocks in planned:
            listed = [c for c in settings if c.core_mhz and c.mem_mhz == clocks.mem_mhz]
            for times in (1.0 - _NEAR, 1.0, 1.0 + _NEAR):
                if clocks.core_mhz and listed:
                    mhz = times * clocks.core_mhz
                    kept.add(min(listed, key=lambda c: abs((c.core_mhz or 0) - mhz)))
        settings = tuple(clocks for clocks in settings if clocks in kept)
    points = [
        (clocks, [kernel for kernel in kernels if measurer.can_measure(kernel, clocks)])
        for clocks in ([AUTO] if steered else settings)
    ]
    names = [(clocks, {kernel.name for kernel in some}) for clocks, some in points]
    without = {
        kernel.name: tuple(clocks for clocks, there in names if kernel.name not in there)
        for kernel in kernels
    }
    lacking = [name for name, some in without.items() if len(some) == len(points)]
    if lacking:
        raise UsageError(
            f"this GPU cannot answer for {lacking[0]!r} ({len(lacking)} of {len(kernels)} kernels)",
            hint="a table only knows its own kernels: leave the step away",
        )
    header = SampleSet(
        evidence=measurer.evidence,
        gpu=measurer.info(),
        step=step or Step(name=name, kernels=kernels),
        settings=settings,
        repeats=campaign.repeats,
        expected_samples=None
        if adaptive
        else campaign.repeats * sum(len(some) for _, some in points),
        sampled=any((measurer.repeats(k, c) or 0) > 1 for c, some in points for k in some),
        lacking={name: some for name, some in without.items() if some and adaptive},
        provenance=provenance,
        warnings=(*(step.warnings if step else ()), *measurer.notes(), *unlockable),
    )
    return header, points


def share_of(samples: SampleSet, campaign: Campaign) -> SampleSet:
    """Return what a share sees of samples: its kernels alone, and no step."""
    at, of = campaign.share
    if of == 1:
        return samples
    kernels = samples.kernels[at::of]
    names = {kernel.name for kernel in kernels}
    return msgspec.structs.replace(
        samples,
        step=Step(name=samples.workload, kernels=kernels),
        lacking={name: each for name, each in samples.lacking.items() if name in names},
        windows=tuple(
            window
            for window in samples.windows
            if window.kernel in names or not (window.kernel or window.mix.launches)
        ),
    )


class SharedRecorder:
    """What the policy of a share's kernels sees of a recorder, whose file holds the step too."""

    def __init__(self, recorder: Recorder, campaign: Campaign) -> None:
        self._recorder, self._campaign = recorder, campaign
        self.measurer = recorder.measurer

    @property
    def can_time(self) -> bool:
        """Whether launches can be timed."""
        return self._recorder.can_time

    @property
    def samples(self) -> SampleSet:
        """Everything on file of the share."""
        return share_of(self._recorder.samples, self._campaign)


class StepsFirst(WindowPolicy):
    """Wants a share's runs of the whole step, then what the policy of its kernels wants."""

    def __init__(self, recorder: Recorder, kernels: WindowPolicy, campaign: Campaign) -> None:
        self._recorder, self._kernels = recorder, kernels
        runs = recorder.samples.order and Capability.RUN in recorder.measurer.capabilities
        self._steps = -(-WHOLE_STEPS // campaign.share[1]) if campaign.in_situ and runs else 0
        self.limit_s = kernels.limit_s
        self.total = kernels.total and kernels.total + self._steps

    def next(self, spent_s: float) -> Sequence[Wanted]:
        """Return what to measure next."""
        missing = self._steps - len(self._recorder.samples.in_situ)
        return [Wanted(timed=False)] * missing or self._kernels.next(spent_s)

    def at_once(self, window: Window) -> Sequence[Wanted]:
        """Return what a window just taken calls for at the clocks held."""
        return self._kernels.at_once(window)
