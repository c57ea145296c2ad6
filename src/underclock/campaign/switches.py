"""How long a GPU takes to change its clocks, by the method of LATEST (arXiv 2502.20075).

Every sampled clock is asked for from two others that can be told from it, over and over. The GPU
runs tiny pieces of equal work meanwhile; when their durations become those of the new clock, it has
changed.

The GPU is held by a lease from the first write on. Before each change the ticks must show that the
old clock stands; after it they must show the new one, or the change does not count.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np

from underclock.campaign.progress import Tally
from underclock.core.statistics.change_point import (
    Level,
    TraceStatus,
    find_change_point,
    level,
    summarise,
    tell_apart,
)
from underclock.errors import MeasurementError, NotSupportedError
from underclock.hw.base import Clock, Gpu, Ticker
from underclock.hw.lease import ClockLeases, check_applied
from underclock.hw.nvml import NvmlGpu
from underclock.records import Clocks, Evidence
from underclock.records.latencies import Domain, LatencyTable, Switch, switch_text
from underclock.units import format_duration, format_mhz

Pair = tuple[int | None, int | None]
"""Two clocks of one domain in MHz; ``None`` is auto."""

ORIGINS = 2  # of every target
_BUSY = 0.05  # more of the time in interrupted ticks than this, and something else computes
_OFTEN = 0.1  # of the repeats; an interruption at the wrong moment looks like an early change
_ASSUMED = "the delays are those that the simulator assumes: nobody measured them on this GPU"

_SETTLE_S = 1.0  # longer than any known change of a clock
_TRIES = 5
_TICK_S = 4e-6  # at the fastest clock; changes are told finer than a tick
_LEVEL_TICKS = 5000  # at the fastest clock; slow memory clocks still leave a hundred
_LEVEL_S = 0.02  # but never so short that another program's turn takes all of it
_LEAD_TICKS, _TAIL_TICKS = 200, 300
_LEAD_S = _LEAST_TAIL_S = 5e-3  # a lead or a tail is never shorter
_PHASE_S = 5e-3  # so that changes are not asked for in step with anything
_FIRST_TAIL_S, _LONGEST_TAIL_S, _LONGER = 0.1, 2.0, 4.0
_TAIL_DELAYS = 5.0  # watch so many usual times of a change; one that takes longer is an outlier


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """What measuring switches needs.

    Attributes:
        gpu: Whose clocks change.
        leases: Of its clocks.
        clock: The host's, on which the ticker's times are too.
    """

    gpu: NvmlGpu
    leases: ClockLeases
    ticker: Ticker
    clock: Clock
    random: np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """One change of a clock.

    Attributes:
        delay_s: From its return until the clock was the new one, or until the stall before that
            began; 0 where that was earlier.
        early: Whether it changed before the call returned, by more than a tick.
    """

    call_s: float
    delay_s: float
    stall_s: float
    early: bool


class Watch:
    """Watches one clock of a GPU change, while the other stands.

    Args:
        stand: GPU, ticker and clock.
        domain: Whose clock changes.
        core_mhz: For the memory clock: the core clock held meanwhile; ``None`` is auto.
    """

    def __init__(self, stand: Stand, domain: Domain, core_mhz: int | None = None) -> None:
        self.domain = domain
        self._stand = stand
        self._core_mhz = core_mhz
        self._levels: dict[int | None, Level] = {}
        self._seen_s: defaultdict[int | None, list[float]] = defaultdict(list)  # by target

    def learn(self, mhz: int | None) -> Level:
        """Hold a clock and learn how long ticks take at it.

        Raises:
            NotAppliedError: The GPU runs at another clock.
            MeasurementError: It does not come to rest at one.
        """
        with self._holding(mhz):
            for _ in range(_TRIES):
                self._stand.clock.sleep_s(_SETTLE_S)
                steady = self._steady(mhz)
                if steady is not None:
                    self._levels[mhz] = steady
                    return steady
        raise MeasurementError(
            f"the {self.domain} clock does not settle at {format_mhz(mhz)} MHz",
            hint="power, heat or another program moves it: measure when nothing else runs",
        )

    @contextmanager
    def between(self, one: int | None, other: int | None) -> Iterator[None]:
        """Begin at the first of two clocks that is no auto; give all of them back at the end."""
        with self._holding(other if one is None else one):
            self._stand.clock.sleep_s(_SETTLE_S)
            yield

    def switch(self, origin: int | None, target: int | None) -> Switched:
        """Change the clock and return what it took; the GPU is left at the target.

        Raises:
            MeasurementError: The change does not show.
        """
        if target not in self._seen_s:  # how long to look is not known yet: not counted
            self._insist(origin, target)
            self._return_to(origin)
        return self._insist(origin, target)

    def _insist(self, origin: int | None, target: int | None) -> Switched:
        """Try until a change is seen, looking longer each time it did not come."""
        tail_s, status = self._tail_s(target), TraceStatus.PENDING
        for _ in range(_TRIES):
            status, switched = self._try(origin, target, tail_s)
            if switched is not None:
                self._seen_s[target].append(switched.delay_s + switched.stall_s)
                return switched
            if status is TraceStatus.PENDING:
                tail_s = min(_LONGER * tail_s, _LONGEST_TAIL_S)
            self._return_to(origin)
        raise MeasurementError(
            f"{switch_text(self.domain, origin, target)}: {status} ({_TRIES} tries, the last over "
            f"{format_duration(tail_s)})",
            hint="power, heat or another program moves the clock: measure when nothing else runs",
        )

    def _try(
        self, origin: int | None, target: int | None, tail_s: float
    ) -> tuple[TraceStatus, Switched | None]:
        """Ask for a clock once, and return what was seen of it."""
        stand, before, after = self._stand, self._levels[origin], self._levels[target]
        called_s = returned_s = 0.0

        def ask() -> None:
            nonlocal called_s, returned_s
            called_s = stand.clock.now_s()
            self._ask(target)
            returned_s = stand.clock.now_s()

        edges_s = stand.ticker.trace(
            ask,
            domain=self.domain,
            tick_s=_TICK_S,
            lead_s=max(_LEAD_S, _LEAD_TICKS * before.mean_s)
            + _PHASE_S * float(stand.random.random()),
            tail_s=tail_s + _TAIL_TICKS * after.mean_s,
        )
        change = find_change_point(edges_s, asked_s=called_s, before=before, after=after)
        if change.at_s is None or change.stall_s is None:
            return change.status, None
        return change.status, Switched(
            call_s=returned_s - called_s,
            delay_s=max(0.0, change.at_s - returned_s),
            stall_s=change.stall_s,
            early=change.at_s < returned_s - max(before.mean_s, after.mean_s),
        )

    def _tail_s(self, target: int | None) -> float:
        """Return how long to look after a change: by what those to the target took so far."""
        if target not in self._seen_s:
            return _FIRST_TAIL_S
        return max(_LEAST_TAIL_S, _TAIL_DELAYS * statistics.median(self._seen_s[target]))

    def _return_to(self, mhz: int | None) -> None:
        self._ask(mhz)
        self._stand.clock.sleep_s(_SETTLE_S)

    def _ask(self, mhz: int | None) -> None:
        """Ask for a clock in one call."""
        if mhz is None:
            self._stand.gpu.give_back(self.domain)
        elif self.domain is Domain.CORE:
            self._stand.gpu.lock(Clocks(core_mhz=mhz))
        else:
            self._stand.gpu.lock(Clocks(mem_mhz=mhz))

    def _holding(self, mhz: int | None) -> AbstractContextManager[None]:
        return self._stand.leases.hold(self._clocks(mhz))

    def _clocks(self, mhz: int | None) -> Clocks:
        if self.domain is Domain.CORE:
            return Clocks(core_mhz=mhz)
        return Clocks(core_mhz=self._core_mhz, mem_mhz=mhz)

    def _steady(self, mhz: int | None) -> Level | None:
        """Return how long ticks take now; ``None`` while that changes."""
        stand, clocks = self._stand, self._clocks(mhz)

        def check() -> None:
            check_applied(stand.gpu, clocks)

        edges_s = stand.ticker.trace(
            check,
            domain=self.domain,
            tick_s=_TICK_S,
            lead_s=max(_LEVEL_S, _LEVEL_TICKS * _TICK_S),
            tail_s=max(_LEVEL_S, _LEVEL_TICKS * _TICK_S),
        )
        middle = len(edges_s) // 2
        moves = tell_apart(level(edges_s[: middle + 1]), level(edges_s[middle:]))
        return None if moves else level(edges_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Clocks of one domain that are changed into one another.

    Attributes:
        domain: Whose clocks.
        clocks: In MHz, ``None`` for auto, which comes last.
        only: Where not ``None``, only switches from or to this one.
        core_mhz: For memory clocks: the core clock held meanwhile; ``None`` is auto.
    """

    domain: Domain
    clocks: tuple[int | None, ...]
    only: int | None = None
    core_mhz: int | None = None


def sample_switches(
    stand: Stand,
    *,
    targets: int,
    repeats: int,
    evidence: Evidence,
    progress: Callable[[Tally], None] | None = None,
) -> LatencyTable:
    """Measure switches on a GPU that is open, between so many core clocks and all of memory.

    Raises:
        NotPermittedError: This process may not lock clocks.
        NotAppliedError: The GPU does not follow its locks.
        DeviceError, MeasurementError: From the GPU.
    """
    groups = groups_of(stand.gpu, targets)
    counter = _Counter(stand, groups, repeats, progress or (lambda _tally: None))
    warnings = [_ASSUMED] if evidence is Evidence.SIMULATED else []
    if all(group.domain is Domain.CORE for group in groups):
        warnings.append("this GPU has one memory clock: only switches of the core are measured")
    switches: list[Switch] = []
    with stand.leases:
        for group in groups:
            try:
                measured, told = _measure_group(stand, group, repeats, counter)
            except NotSupportedError as exc:
                if group.domain is Domain.CORE:
                    raise
                told = [f"only switches of the core are measured: {exc}"]
                measured = []
            switches += measured
            warnings += [sentence for sentence in told if sentence not in warnings]
    counter.finish()
    if not switches:
        raise MeasurementError(
            "no change of a clock could be told from the durations of work",
            hint="sample more clocks with --targets",
        )
    return LatencyTable(
        evidence=evidence, gpu=stand.gpu.info(), switches=tuple(switches), warnings=tuple(warnings)
    )


def groups_of(gpu: Gpu, targets: int) -> tuple[Group, ...]:
    """Return which clocks of a GPU to sample: a few of the core, all of the memory.

    A memory clock at which the core cannot run at its fastest does not hold while the core is left
    to boost, so it makes a group of its own, with the core held as fast as it may.
    """
    cores, mems = gpu.supported_core_mhz(), gpu.supported_mem_mhz()
    places = np.linspace(0, len(cores) - 1, min(targets, len(cores)))
    groups = [Group(domain=Domain.CORE, clocks=(*(cores[round(p)] for p in places), None))]
    if len(mems) == 1:  # holding it is what auto does, and often refused
        return tuple(groups)
    fastest = {mhz: gpu.supported_core_mhz(mhz)[-1] for mhz in mems}
    free = [mhz for mhz in mems if fastest[mhz] == cores[-1]]
    groups.append(Group(domain=Domain.MEMORY, clocks=(*free, None)))
    groups += [
        Group(
            domain=Domain.MEMORY,
            clocks=tuple(dict.fromkeys((mhz, free[0], free[-1]))),
            only=mhz,
            core_mhz=core_mhz,
        )
        for mhz, core_mhz in fastest.items()
        if mhz not in free
    ]
    return tuple(groups)


def choose_pairs(levels: Mapping[int | None, Level], only: int | None = None) -> list[Pair]:
    """Return pairs of clocks such that each is in two with others that can be told from it.

    Of those that can, the one that differs most and the one in the middle. Where one clock is
    named, only pairs with that.
    """
    pairs: dict[frozenset[int | None], Pair] = {}
    for target in levels if only is None else (only,):
        others = [
            mhz for mhz in levels if mhz != target and tell_apart(levels[mhz], levels[target])
        ]
        others.sort(key=lambda mhz: -abs(math.log(levels[mhz].mean_s / levels[target].mean_s)))
        for other in (others[0], others[len(others) // 2]) if others else ():
            pairs.setdefault(frozenset((target, other)), (other, target))
    return list(pairs.values())


def _measure_group(
    stand: Stand, group: Group, repeats: int, counter: "_Counter"
) -> tuple[list[Switch], list[str]]:
    """Return the switches of a group, and what the reader must be told of them."""
    watch = Watch(stand, group.domain, group.core_mhz)
    levels = {}
    for mhz in group.clocks:
        counter.tell(f"settling at {group.domain} {format_mhz(mhz)} MHz")
        levels[mhz] = watch.learn(mhz)
    told = []
    if max(level.interrupted for level in levels.values()) > _BUSY:
        told.append("something else computes on this GPU: the delays are blurred by its turns")
    pairs = choose_pairs(levels, group.only)
    told += [
        f"{group.domain} {format_mhz(mhz)} MHz: work takes as long as at every other sampled "
        "clock, so its switches cannot be told"
        for mhz in group.clocks
        if group.only in {None, mhz} and not any(mhz in pair for pair in pairs)
    ]
    switched: defaultdict[Pair, list[Switched]] = defaultdict(list)
    for one, other in pairs:
        with watch.between(one, other):
            # Begin at the one that is held; auto is where it goes first.
            there = (other, one) if one is None else (one, other)
            for _ in range(repeats):
                for pair in (there, there[::-1]):
                    counter.tell(switch_text(group.domain, *pair))
                    switched[pair].append(watch.switch(*pair))
                    counter.done += 1
    if any(np.mean([each.early for each in some]) > _OFTEN for some in switched.values()):
        told.append(
            f"changes of the {group.domain} clock came before their call returned; their delay "
            "counts as 0"
        )
    return [_summary(group.domain, pair, some) for pair, some in switched.items()], told


def _summary(domain: Domain, pair: Pair, switched: Sequence[Switched]) -> Switch:
    """Return what repeats of one switch have in common."""
    delay = summarise(np.array([each.delay_s for each in switched]))
    kept = [each for each, inside in zip(switched, delay.kept, strict=True) if inside]
    return Switch(
        domain=domain,
        from_mhz=pair[0],
        to_mhz=pair[1],
        call_s=float(np.median([each.call_s for each in kept])),
        delay_s=delay.median,
        delay_p05_s=delay.p05,
        delay_p95_s=delay.p95,
        jitter_s=delay.sigma,
        stall_s=float(np.median([each.stall_s for each in kept])),
        repeats=len(kept),
        outliers=len(switched) - len(kept),
    )


class _Counter:
    """Tells how far a survey is; how many switches there will be is a guess from above."""

    def __init__(
        self, stand: Stand, groups: Sequence[Group], repeats: int, progress: Callable[[Tally], None]
    ) -> None:
        self.done = 0
        self._total = sum(
            2 * ORIGINS * repeats * (len(group.clocks) if group.only is None else 1)
            for group in groups
        )
        self._clock = stand.clock
        self._started_s = stand.clock.now_s()
        self._progress = progress

    def tell(self, doing: str) -> None:
        """Say what is being done."""
        gpu_s = self._clock.now_s() - self._started_s
        self._progress(Tally(done=self.done, total=self._total, gpu_s=gpu_s, doing=doing))

    def finish(self) -> None:
        """Say that all is done, however little it was."""
        self._total = self.done
        self.tell("done")
