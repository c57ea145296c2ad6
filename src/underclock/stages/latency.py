"""latency: how long a GPU takes to change its clocks, by the method of LATEST (arXiv 2502.20075).

Every sampled clock is asked for from two others that can be told from it, over and over. The GPU
runs tiny pieces of equal work meanwhile; when their durations become those of the new clock, it has
changed.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

import underclock
from underclock.campaign.progress import Tally
from underclock.core.statistics.change_point import Level, summarise, tell_apart
from underclock.errors import MeasurementError, NotSupportedError, UsageError
from underclock.hw.base import Capability, Gpu
from underclock.hw.gpu_names import parse_gpu
from underclock.hw.lease import ClockLeases
from underclock.hw.simulated.ticker import VirtualTicker
from underclock.records import Evidence, Provenance
from underclock.records.latencies import Domain, LatencyTable, Switch, switch_text
from underclock.stages.backends import open_rig
from underclock.stages.switches import Stand, Switched, Watch
from underclock.units import format_mhz

Pair = tuple[int | None, int | None]
"""Two clocks of one domain in MHz; ``None`` is auto."""

TARGETS, REPEATS = 6, 20
_ORIGINS = 2  # of every target
_BUSY = 0.05  # more of the time in interrupted ticks than this, and something else computes
_OFTEN = 0.1  # of the repeats; an interruption at the wrong moment looks like an early change
_ASSUMED = "the delays are those that the simulator assumes: nobody measured them on this GPU"


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


def measure_latency(
    gpu: str,
    *,
    targets: int = TARGETS,
    repeats: int = REPEATS,
    seed: int = 0,
    progress: Callable[[Tally], None] | None = None,
) -> LatencyTable:
    """Measure how long a GPU takes to change its clocks.

    Clocks are given back at the end, whatever happens.

    Args:
        gpu: ``sim:NAME`` or ``sim:NAME#UNIT``.
        targets: How many core clocks to sample, evenly over those the driver lists; auto and every
            memory clock are sampled beside them.
        repeats: Of every switch.
        seed: Of a simulated GPU's noise, and of the moments at which changes are asked for.
        progress: Told of every switch.

    Raises:
        UsageError: No GPU whose clocks could change, too few targets, or no repeats.
        NotSupportedError: A real GPU; this version has nothing to run on it.
        NotPermittedError: This process may not lock clocks.
        NotAppliedError: The GPU does not follow its locks.
        DeviceError, MeasurementError: From the GPU.
    """
    if targets < _ORIGINS or repeats < 1:
        raise UsageError(
            f"cannot measure {targets} targets {repeats} times",
            hint=f"at least {_ORIGINS} targets and one repeat",
        )
    name = parse_gpu(gpu)
    name.need(Capability.SWITCH)
    with open_rig(name, seed=seed) as rig:
        stand = Stand(
            gpu=rig.gpu,
            leases=ClockLeases(rig.gpu),
            ticker=VirtualTicker(rig.device, rig.clock, seed=seed),
            clock=rig.clock,
            random=np.random.default_rng([seed, 5]),
        )
        table = sample_switches(
            stand,
            targets=targets,
            repeats=repeats,
            evidence=Evidence.SIMULATED,
            progress=progress,
        )
    return msgspec.structs.replace(
        table, provenance=Provenance(seed=seed, version=underclock.__version__)
    )


def sample_switches(
    stand: Stand,
    *,
    targets: int = TARGETS,
    repeats: int = REPEATS,
    evidence: Evidence,
    progress: Callable[[Tally], None] | None = None,
) -> LatencyTable:
    """Measure a sample of switches on a GPU that is open.

    Args:
        stand: GPU, ticker and clock.
        targets: How many core clocks to sample.
        repeats: Of every switch.
        evidence: What the numbers are.
        progress: Told of every switch.

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
        evidence=evidence,
        gpu=stand.gpu.info(),
        switches=tuple(switches),
        warnings=tuple(warnings),
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

    Of those that can, the one that differs most and the one in the middle.

    Args:
        levels: How long work takes at each clock.
        only: Where not ``None``, only pairs with this clock.
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
        self,
        stand: Stand,
        groups: Sequence[Group],
        repeats: int,
        progress: Callable[[Tally], None],
    ) -> None:
        self.done = 0
        self._total = sum(
            2 * _ORIGINS * repeats * (len(group.clocks) if group.only is None else 1)
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
