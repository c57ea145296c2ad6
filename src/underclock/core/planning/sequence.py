"""A step whose changes of clocks take time, stated as a problem, and the rules it keeps.

Shape letters: S settings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints, turned
from underclock.core.planning.misses import usual_misses
from underclock.core.solvers import SequenceProblem
from underclock.core.step.table import CostTable, overlapped
from underclock.errors import DataError
from underclock.records import Clocks, Kernel, Kind, Pass
from underclock.records.latencies import Domain, LatencyTable, Switch, mhz_of

_CALL_TAIL = 3.0  # one call in a hundred takes thrice the median (A800: 4.5 ms and 13 ms)
_CALL_SPREAD = 0.6  # standard deviation of calls over their median, on that A800
_LATE_BY = 3.0  # deviations that the segment before must leave room for


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a schedule must keep, besides the time budget.

    Attributes:
        max_slowdown: Time budget as a fraction above auto.
        max_switches: Most changes in a step; ``None`` for no limit.
    """

    latencies: LatencyTable
    max_slowdown: float = 0.0
    max_switches: int | None = None

    def __post_init__(self) -> None:
        if not -1.0 < self.max_slowdown < math.inf:
            raise ValueError(f"max_slowdown must be above -1, got {self.max_slowdown}")
        if self.max_switches is not None and self.max_switches < 0:
            raise ValueError(f"max_switches must not be negative, got {self.max_switches}")


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
            "changing clocks takes time, and nobody knows in which order the step launches its "
            "kernels",
            hint="plan samples of a traced step, or leave --latency away",
        )
    counts = np.array([kernel.count for kernel in table.kernels], dtype=np.float64)
    time_s, energy_j = table.time_s / counts[:, None], table.energy_j / counts[:, None]
    stall_s, dwell_s, jitter_s = _switching(table.settings, rules)
    launches, power_w = np.array(order, dtype=np.int64), table.auto_w
    miss_s, miss_j = usual_misses(table.launches, launches, jitter_s, power_w)
    if table.power_cap is not None:
        # Auto is a cost of the whole step: beside locked launches it would be another.
        time_s, energy_j = time_s.copy(), energy_j.copy()
        time_s[:, table.baseline] = energy_j[:, table.baseline] = math.inf
    return SequenceProblem(
        time_s=time_s,
        energy_j=energy_j,
        order=launches,
        switch_time_s=stall_s + miss_s,
        # A stalled GPU draws less than this; how much less nobody has measured.
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
    """Return before which launches clocks must stay as they are. Shape (n,).

    Changing clocks round a collective that is waited for delays every GPU that waits in it. What
    runs beside the launches before it has their clocks.

    Args:
        order: Kernel of each launch. Shape (n,).
    """
    beside = overlapped(kernels)
    collective = np.array(
        [k.kind is Kind.COLLECTIVE or k.pass_ is Pass.COMMUNICATION for k in kernels], dtype=bool
    )
    during = (collective & ~beside)[order]
    blocked: Bools = during | turned(during, 1) | beside[order]
    return blocked


def _switching(settings: Sequence[Clocks], rules: Rules) -> tuple[Floats, Floats, Floats]:
    """Return how long each change stalls, how long the segment before must be, and jitter.

    Shapes (S, S).
    """
    stall_s, calls_s, delay_s, variance = np.zeros((4, len(settings), len(settings)))
    for domain in Domain:
        clocks = [mhz_of(each, domain) for each in settings]
        call_s, own_delay_s, jitter_s, own_stall_s = _changes(rules.latencies, domain, clocks)
        stall_s += own_stall_s
        variance += jitter_s**2 + (_CALL_SPREAD * call_s) ** 2
        # Calls follow each other; what they ask for happens side by side.
        calls_s += call_s
        delay_s = np.maximum(delay_s, own_delay_s + own_stall_s + _LATE_BY * jitter_s)
    dwell_s = _CALL_TAIL * calls_s + delay_s
    np.fill_diagonal(dwell_s, 0.0)
    return stall_s, dwell_s, np.sqrt(variance)


def _changes(latencies: LatencyTable, domain: Domain, mhz: Sequence[int | None]) -> Floats:
    """Return what `_parts` says of changing one clock between settings. Shape (4, S, S)."""
    clocks = {clock: row for row, clock in enumerate(dict.fromkeys(mhz))}
    taken = np.zeros((4, len(clocks), len(clocks)))
    if len(clocks) > 1:
        for after, column in clocks.items():
            taken[:, :, column] = _parts(latencies.from_anywhere(domain, after))[:, None]
    for switch in latencies.switches:
        if switch.domain is domain and {switch.from_mhz, switch.to_mhz} <= clocks.keys():
            at = clocks[switch.from_mhz], clocks[switch.to_mhz]
            taken[:, *at] = _parts(switch)
    taken[:, range(len(clocks)), range(len(clocks))] = 0.0
    which = [clocks[each] for each in mhz]
    return taken[:, which][:, :, which]


def _parts(switch: Switch) -> Floats:
    """How long the setter blocks, then the delay, its deviation, and time without work."""
    return np.array([switch.call_s, switch.delay_s, switch.jitter_s, switch.stall_s])
