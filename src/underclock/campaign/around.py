"""Which clocks to measure around a plan that was made on another GPU of the same model."""

import zlib
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from underclock.campaign.survey import Points
from underclock.errors import UsageError
from underclock.records import Clocks, Kernel, Plan

_STEP = 0.025  # of the range of core clocks
_LEAST_MEM = 0.4  # of the fastest memory clock; slower ones rarely save


@dataclass(frozen=True, slots=True)
class Around:
    """How far neighbours of clocks are, as `around` takes it."""

    reach: int
    auto_mem_mhz: int | None

    def __call__(self, clocks: Clocks, offered: Collection[Clocks]) -> tuple[Clocks, ...]:
        """Return the neighbours of a clock pair that are offered."""
        return around(clocks, offered, self.reach, self.auto_mem_mhz)


def around(
    clocks: Clocks, offered: Collection[Clocks], reach: int, auto_mem_mhz: int | None = None
) -> tuple[Clocks, ...]:
    """Return the neighbours of a clock pair that are offered: core beside it, memory next to it.

    Args:
        reach: How many steps of 2.5 % of the range of core clocks they are away.
        auto_mem_mhz: Memory clock that runs where none is locked; by default the fastest offered.
    """
    core = clocks.core_mhz
    every = sorted({c.core_mhz for c in offered if c.core_mhz is not None})
    if core is None or not every:
        return ()
    beside = sorted(c.core_mhz for c in offered if c.mem_mhz == clocks.mem_mhz and c.core_mhz)
    far_mhz = reach * _STEP * (every[-1] - every[0])
    neighbours = []
    for wanted in (core - far_mhz, core + far_mhz):
        side = [mhz for mhz in beside if (mhz - core) * (wanted - core) > 0]
        if side:
            nearest = min(side, key=lambda mhz: abs(mhz - wanted))
            neighbours.append(Clocks(core_mhz=nearest, mem_mhz=clocks.mem_mhz))
    mems = sorted({c.mem_mhz for c in offered if c.mem_mhz is not None})
    if mems:
        here = clocks.mem_mhz or auto_mem_mhz or mems[-1]
        able = [mhz for mhz in mems if mhz > _LEAST_MEM * mems[-1]]
        next_to = [max((m for m in able if m < here), default=None)]
        next_to.append(min((m for m in able if m > here), default=None))
        pairs = [Clocks(core_mhz=core, mem_mhz=mem) for mem in next_to if mem is not None]
        neighbours += [pair for pair in pairs if pair in offered]
    return tuple(neighbours)


def points_around(plan: Plan, offered: Points, seed: int, near: Around) -> Points:
    """Return what to measure, in random order.

    Raises:
        UsageError: Auto is not there for every kernel, or nothing else is.
    """
    able = {clocks: {kernel.name for kernel in kernels} for clocks, kernels in offered}
    wanted: dict[Clocks, list[Kernel]] = {}
    for kernel in plan.runs:
        mine = {clocks for clocks, names in able.items() if kernel.name in names}
        if plan.baseline not in mine:
            raise UsageError(
                f"this GPU has no answer for {kernel.name!r} at {plan.baseline}, which the plan "
                "compares with",
                hint="plan on this GPU's own samples",
            )
        chosen = plan.kernels[kernel.name].clocks
        for clocks in dict.fromkeys((plan.baseline, *_wanted(plan, chosen, mine, near))):
            if clocks in mine:
                wanted.setdefault(clocks, []).append(kernel)
    if len(wanted) == 1:
        raise UsageError(
            "none of the plan's clocks, nor any near them, can be held on this GPU",
            hint="`underclock doctor` says whether clocks may be set here",
        )
    random = np.random.default_rng([seed, zlib.crc32(b"refine")])
    settings = sorted(wanted, key=lambda clocks: clocks.rank)
    return [
        (
            settings[i],
            [wanted[settings[i]][k] for k in random.permutation(len(wanted[settings[i]]))],
        )
        for i in random.permutation(len(settings)).tolist()
    ]


def _wanted(
    plan: Plan, chosen: Clocks, offered: Collection[Clocks], near: Around
) -> tuple[Clocks, ...]:
    """Return the clocks to measure one kernel at besides auto, whether offered or not."""
    if chosen != plan.baseline and chosen.core_mhz is not None:
        return (chosen, *near(chosen, offered))
    next_best = _next_best(plan, offered)
    return (chosen, *((next_best, *near(next_best, offered)) if next_best else ()))


def _next_best(plan: Plan, offered: Collection[Clocks]) -> Clocks | None:
    """Return what a kernel that the plan left to the driver would be locked to first.

    The best fixed clocks, or else the fastest that the plan has for another kernel, or that there
    are: the first two are known to hold, where the fastest of a list may be beyond what the GPU
    boosts to.
    """
    fixed = () if plan.fixed is None else (plan.fixed,)
    planned = [choice.clocks for choice in plan.kernels.values()]
    for some in (fixed, planned, offered):
        locked = [c for c in some if c != plan.baseline and c.core_mhz is not None]
        if locked:
            return max(locked, key=lambda clocks: clocks.rank)
    return None


def inside(offered: Collection[Clocks], visited: Collection[Clocks]) -> tuple[Clocks, ...]:
    """Return the clocks between those visited: the fit may choose these, measured or not."""
    cores: dict[int | None, list[int]] = {}
    for clocks in visited:
        if clocks.core_mhz is not None:
            cores.setdefault(clocks.mem_mhz, []).append(clocks.core_mhz)
    return tuple(
        c
        for c in offered
        if c in visited
        or (
            c.core_mhz is not None
            and c.mem_mhz in cores
            and min(cores[c.mem_mhz]) <= c.core_mhz <= max(cores[c.mem_mhz])
        )
    )


def within(
    lacking: dict[str, tuple[Clocks, ...]], settings: Collection[Clocks]
) -> dict[str, tuple[Clocks, ...]]:
    """Return what kernels lack of some clocks."""
    among = {name: tuple(c for c in clocks if c in settings) for name, clocks in lacking.items()}
    return {name: clocks for name, clocks in among.items() if clocks}
