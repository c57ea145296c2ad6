"""Clock changes inside a step: the sequence problem under a latency, and the aim of each change.

A change asked for ahead happens near its launch, earlier or later by the scatter of its delay. When
early, the launches before it run at the next clock; when late, the launches after it run at the
previous one. The two differ in cost: work bound by DRAM takes several times as long at a slow
memory clock, work bound by the core does not. Each change is aimed where its expected cost is
least.

Shape letters: n launches, S settings, C changes, L launches on either side, A aims, Q quantiles.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from scipy.special import ndtr, ndtri

from underclock.arrays import Bools, Floats, Ints, turned
from underclock.core.solvers import SequenceProblem
from underclock.core.step.cost_table import CostTable, overlapped
from underclock.core.step.power_cap import LaunchCosts
from underclock.errors import DataError
from underclock.records import Clocks, Kernel, Kind, Pass
from underclock.records.latencies import LatencyTable, Switch, mhz_of
from underclock.units import Domain

_CALL_TAIL = 3.0  # one call in a hundred takes thrice the median (A800: 4.5 ms and 13 ms)
_CALL_SPREAD = 0.6  # standard deviation of calls over their median, on that A800
_LATE_BY = 3.0  # deviations that the segment before must leave room for


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a schedule must keep, besides the time budget."""

    latencies: LatencyTable
    max_slowdown: float = 0.0  # time budget as a fraction above auto
    max_switches: int | None = None  # most changes in a step; ``None`` for no limit


def sequence_problem(table: CostTable, order: Sequence[int], rules: Rules) -> SequenceProblem:
    """State what a GPU can follow as a problem.

    A change is asked for ahead, so that it happens near its boundary: the segment before must last
    as the slowest of a hundred calls, the delay, and three deviations of its jitter. What is lost
    at the boundary is the stall, and what launches take at the other segment's clocks where the
    change comes early or late, as it is on average where such a change pays.

    Raises:
        DataError: The order is unknown, or the latencies lack a clock that a setting holds.
    """
    if not order:
        raise DataError(
            "changing clocks takes time, and the order in which the step launches its kernels is "
            "unknown",
            hint="plan samples of a traced step, or leave --latency away",
        )
    counts = np.array([kernel.count for kernel in table.kernels], dtype=np.float64)
    time_s, energy_j = table.time_s / counts[:, None], table.energy_j / counts[:, None]
    stall_s, dwell_s, jitter_s = _switching(table.settings, rules)
    launches, power_w = np.array(order, dtype=np.int64), table.auto_w
    miss_s, miss_j = usual_misses(table.launches, launches, jitter_s, power_w)
    if table.power_cap is not None:
        # Auto is a cost of the whole step; among locked launches it would differ.
        time_s, energy_j = time_s.copy(), energy_j.copy()
        time_s[:, table.baseline] = energy_j[:, table.baseline] = math.inf
    return SequenceProblem(
        time_s=time_s,
        energy_j=energy_j,
        order=launches,
        switch_time_s=stall_s + miss_s,
        # A stalled GPU draws less than this; how much less was never measured.
        switch_energy_j=stall_s * power_w + miss_j,
        miss_time_s=miss_s,
        miss_energy_j=miss_j,
        dwell_s=dwell_s,
        jitter_s=jitter_s,
        blocked=unchanged(table.kernels, launches),
        max_switches=rules.max_switches,
        budget_s=table.auto_time_s * (1.0 + rules.max_slowdown),
    )


def unchanged(kernels: Sequence[Kernel], order: Ints) -> Bools:
    """Return before which launches, each of a kernel, (n,), clocks must stay as they are.

    Changing clocks round a collective that is waited for delays every GPU that waits in it. An
    overlapped launch has the clocks of the launches before it.
    """
    hidden = overlapped(kernels)
    collective = np.array(
        [k.kind is Kind.COLLECTIVE or k.pass_ is Pass.COMMUNICATION for k in kernels], dtype=bool
    )
    during = (collective & ~hidden)[order]
    return during | turned(during, 1) | hidden[order]


def _switching(settings: Sequence[Clocks], rules: Rules) -> tuple[Floats, Floats, Floats]:
    """Return how long each change stalls, how long the segment before must be, and jitter."""
    # Shapes (S, S).
    stall_s, calls_s, delay_s, variance = np.zeros((4, len(settings), len(settings)))
    for domain in Domain:
        clocks = [mhz_of(each, domain) for each in settings]
        # What `_parts` says of changing one clock between settings. Shape (4, S, S).
        place = {clock: row for row, clock in enumerate(dict.fromkeys(clocks))}
        taken = np.zeros((4, len(place), len(place)))
        if len(place) > 1:
            for after, column in place.items():
                taken[:, :, column] = _parts(rules.latencies.from_anywhere(domain, after))[:, None]
        for switch in rules.latencies.switches:
            if switch.domain is domain and {switch.from_mhz, switch.to_mhz} <= place.keys():
                at = place[switch.from_mhz], place[switch.to_mhz]
                taken[:, *at] = _parts(switch)
        taken[:, range(len(place)), range(len(place))] = 0.0
        which = [place[each] for each in clocks]
        call_s, own_delay_s, jitter_s, own_stall_s = taken[:, which][:, :, which]
        stall_s += own_stall_s
        variance += jitter_s**2 + (_CALL_SPREAD * call_s) ** 2
        # Calls follow each other; what they ask for happens side by side.
        calls_s += call_s
        delay_s = np.maximum(delay_s, own_delay_s + own_stall_s + _LATE_BY * jitter_s)
    dwell_s = _CALL_TAIL * calls_s + delay_s
    np.fill_diagonal(dwell_s, 0.0)
    return stall_s, dwell_s, np.sqrt(variance)


def _parts(switch: Switch) -> Floats:
    """How long the setter blocks, then the delay, its deviation, and time without work."""
    return np.array([switch.call_s, switch.delay_s, switch.jitter_s, switch.stall_s])


_LOOKED_AT = 8  # launches on either side; a change further off costs as if the last went on
_QUANTILES = 25
_SPREADS = np.array([NormalDist().inv_cdf((q + 0.5) / _QUANTILES) for q in range(_QUANTILES)])
_FURTHEST = 3.0  # deviations
_AIMS = np.linspace(-_FURTHEST, _FURTHEST, 25)  # deviations after the launch begins
_PAIRS = 24  # of launches that follow each other, the most frequent: what is usual shows in them
WORTH = 2.5  # of its mean power: energy that plans give for a second, near a budget of 1 %


def misses(
    costs: LaunchCosts, order: Ints, choice: Ints, jitter_s: Floats, power_w: float
) -> tuple[Ints, Floats, Floats, Floats]:
    """Aim the changes of a schedule, and say what they cost.

    Args:
        order: Kernel of each launch. Shape (n,).
        choice: Setting of each launch. Shape (n,).
        jitter_s: Standard deviation of a change's delay, row to column. Shape (S, S).
        power_w: Mean power of the step; says what a second is worth.

    Returns:
        Of each change, (C,): the launch before which it lies, 0 being the wrap; how long in s after
        that launch begins it is best aimed; and the time in s and energy in J that it adds to the
        step, on average.
    """
    before = turned(choice, 1)
    at = np.flatnonzero(choice != before)
    spread_s = jitter_s[before[at], choice[at]]
    if not spread_s.any():
        return at, spread_s, spread_s, spread_s
    aims: Floats = spread_s[:, None] * _AIMS
    off_s = aims[:, :, None] + spread_s[:, None, None] * _SPREADS  # (C, A, Q)
    time_s, energy_j = np.zeros((2, *off_s.shape))
    reach = np.arange(min(_LOOKED_AT, len(order)))
    for launches, lasting, missed, sign in (
        ((at[:, None] - 1 - reach) % len(order), None, choice[at], -1.0),
        ((at[:, None] + reach) % len(order), before[at], before[at], 1.0),
    ):
        kernel, planned = order[launches], choice[launches]
        instead = np.broadcast_to(missed[:, None], kernel.shape)
        lasts_s = costs.time_s[kernel, planned if lasting is None else lasting[:, None]]
        added_s, added_j = (
            each[kernel, instead] - each[kernel, planned] for each in (costs.time_s, costs.energy_j)
        )
        missed_s = np.maximum(sign * off_s, 0.0)
        time_s += _summed(lasts_s, added_s, missed_s)
        energy_j += _summed(lasts_s, added_j, missed_s)
    mean_s, mean_j = time_s.mean(axis=2), energy_j.mean(axis=2)
    best = (mean_j + WORTH * power_w * mean_s).argmin(axis=1)
    each = np.arange(len(at))
    return at, aims[each, best], mean_s[each, best], mean_j[each, best]


def usual_misses(
    costs: LaunchCosts, order: Ints, jitter_s: Floats, power_w: float
) -> tuple[Floats, Floats]:
    """Return what changes cost on average where they are made, in time and energy. Shapes (S, S).

    They are made where the launch before fares better at the clocks before, and the launch behind
    at those behind. Arguments are those of `misses`.
    """
    if not jitter_s.any():
        return jitter_s, jitter_s
    pairs, counts = np.unique(np.stack((turned(order, 1), order)), axis=1, return_counts=True)
    often = np.argsort(-counts, kind="stable")[:_PAIRS]
    time_s, energy_j, weight = np.zeros((3, *jitter_s.shape))
    for (before, behind), count in zip(pairs.T[often], counts[often].tolist(), strict=True):
        with np.errstate(invalid="ignore"):
            # For a second early or late, row to column; infinite where a cost is not known.
            rates = [
                (each[before][None, :] - each[before][:, None]) / costs.time_s[before][:, None]
                for each in (costs.time_s, costs.energy_j)
            ] + [
                (each[behind][:, None] - each[behind][None, :]) / costs.time_s[behind][:, None]
                for each in (costs.time_s, costs.energy_j)
            ]
        known = np.isfinite(rates).all(axis=0)
        early_s, early_j, late_s, late_j = (np.where(known, each, 0.0) for each in rates)
        early = early_j + WORTH * power_w * early_s
        late = late_j + WORTH * power_w * late_s
        made = (early > 0.0) & (late > 0.0)
        odds = np.where(made, late, 1.0) / np.where(made, early + late, 2.0)
        aim = -np.clip(ndtri(odds), -_FURTHEST, _FURTHEST)
        density = np.exp(-0.5 * aim**2) / math.sqrt(2.0 * math.pi)
        is_late, is_early = density + aim * ndtr(aim), density - aim * ndtr(-aim)
        time_s += count * made * (is_early * early_s + is_late * late_s)
        energy_j += count * made * (is_early * early_j + is_late * late_j)
        weight += count * made
    share = jitter_s / np.maximum(weight, 1.0)
    # A change that takes time and gives energy, or the reverse, counts as 0 of what it gives.
    return np.maximum(time_s * share, 0.0), np.maximum(energy_j * share, 0.0)


def _summed(lasts_s: Floats, added: Floats, missed_s: Floats) -> Floats:
    """Return what is added when launches run at other clocks for some time."""
    known = np.isfinite(lasts_s) & np.isfinite(added)
    rate = np.where(known, added, 0.0) / np.where(known, lasts_s, 1.0)
    ends_s = np.cumsum(np.where(known, lasts_s, 0.0), axis=1)
    total = np.zeros(missed_s.shape)
    begins_s = np.zeros(len(ends_s))
    for launch in range(ends_s.shape[1]):
        last = launch == ends_s.shape[1] - 1
        ends = np.full(len(ends_s), np.inf) if last else ends_s[:, launch]
        inside = np.clip(missed_s, begins_s[:, None, None], ends[:, None, None])
        total += rate[:, launch, None, None] * (inside - begins_s[:, None, None])
        begins_s = ends_s[:, launch]
    return total
