"""Changes of a GPU's clocks, as small kernels' durations and NVML's clock show them.

Where clocks may not be set, hot products take the GPU to its power limit and leave it again, so
that the driver moves the clock itself.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from underclock.arrays import Floats
from underclock.core.statistics.repeats import find_change, moves, robust_sigma
from underclock.errors import NotAppliedError, NotSupportedError
from underclock.hw.base import Clock, SmallKernels
from underclock.hw.lease import ClockLeases
from underclock.hw.nvml import NvmlGpu
from underclock.records import Clocks
from underclock.records.latencies import ClockReading, Quantiles, Reader, Switch, mhz_of
from underclock.units import Domain, format_duration, format_mhz

Progress = Callable[[int, int, str], None]
"""Takes how many pieces of work are done, of how many, and which is next."""
Row = tuple[float, float, float, float, float]
"""Call, switching, transition, stall and time between readings in s; nan where nothing called."""
Pair = tuple[int | None, int | None]
"""Two clocks of one domain in MHz; ``None`` is auto."""

_POLL_S = 5e-4
_SETTLE_S, _LEAD_S = 0.5, 0.1
_TAIL_S, _LEAST_TAIL_S, _LONGEST_TAIL_S, _LONGER = 0.3, 0.2, 5.0, 4.0
_TAIL_TIMES = 3.0  # watch so many times as long as the change took before
_LEAST_READINGS = 4
_OFF = 0.01  # of a clock that was asked for: further off it is another
_STALL = 3.0  # a kernel that takes so many times as long stood still
_HOT_S = 1.0  # with hot products, and as long without
_WIDTH = 16  # readings on each side of a driver's move


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A GPU, the small kernels on it, and the host's clock."""

    gpu: NvmlGpu
    kernels: SmallKernels
    clock: Clock

    def poll(self, domain: Domain, for_s: float) -> Iterator[tuple[float, float]]:
        """Yield times and the clock that NVML reports, for a while."""
        end_s = self.clock.now_s() + for_s
        while (now_s := self.clock.now_s()) < end_s:
            yield now_s, float(mhz_of(self.gpu.observed(), domain) or 0)
            self.clock.sleep_s(_POLL_S)

    def ask(self, domain: Domain, mhz: int | None) -> None:
        """Ask for a clock in one call."""
        self.gpu.give_back(domain) if mhz is None else self.gpu.lock(_clocks(domain, mhz))

    def switch(self, domain: Domain, pair: Pair, tail_s: float) -> dict[Reader, Row]:
        """Change a clock; empty where it is not seen at the new one within the tail.

        Raises:
            NotAppliedError: It is not at the old one, or not at the new one after the longest tail.
        """
        polls: list[tuple[float, float]] = []
        at_s: list[float] = []

        def change() -> None:
            polls.extend(self.poll(domain, _LEAD_S))
            at_s.append(self.clock.now_s())
            self.ask(domain, pair[1])
            at_s.append(self.clock.now_s())
            polls.extend(self.poll(domain, tail_s))

        starts_s, durations_s, _ = self.kernels.run(change, domain).T
        polled_s, mhz = np.array(polls).T
        before, after = (int(np.searchsorted(t_s, at_s[0])) for t_s in (polled_s, starts_s))
        kernels, nvml = _row(starts_s, durations_s, *at_s), _row(polled_s, mhz, *at_s)
        for asked, seen, took_s, there in (
            (pair[0], mhz[before - 1], durations_s[:after], True),
            (pair[1], mhz[-1], durations_s[after:], kernels is not None),
        ):
            if there and (asked is None or abs(seen / asked - 1.0) < _OFF):
                continue
            if asked == pair[1] and _LONGER * tail_s <= _LONGEST_TAIL_S:
                return {}
            raise NotAppliedError(
                f"{domain} {'auto' if asked is None else f'{asked} MHz'} was not reached: the "
                f"driver accepted it, NVML reports {seen:.0f} MHz, and small kernels take "
                f"{format_duration(float(np.median(took_s[-_WIDTH:])))}"
            )
        found = {Reader.KERNELS: kernels, Reader.NVML: nvml}
        return {by: row for by, row in found.items() if row is not None}


def measure_switches(
    bench: Bench, targets: Sequence[int], repeats: int, progress: Progress
) -> tuple[tuple[Switch, ...], tuple[str, ...]]:
    """Measure changes between core clocks, and between a few of memory, auto included.

    Returns:
        The switches, and what the reader must know of those that are not among them.

    Raises:
        NotAppliedError: No clock that was asked for was reached.
        DeviceError: From the GPU.
    """
    cores, mems = bench.gpu.supported_core_mhz(), bench.gpu.supported_mem_mhz()
    third = len(cores) // 3
    chosen = {Domain.CORE: sorted(targets) or [cores[third], cores[2 * third]]}
    if len(mems) > 1:  # to hold the only one is what auto does, and often refused
        free = [mhz for mhz in mems if bench.gpu.supported_core_mhz(mhz)[-1] == cores[-1]]
        chosen[Domain.MEMORY] = [free[0], free[(len(free) - 1) // 2]]
    pairs = [
        (domain, pair)
        for domain, clocks in chosen.items()
        for pair in combinations([*dict.fromkeys(clocks), None], 2)
    ]
    switches: list[Switch] = []
    warnings: dict[str, None] = {}
    with ClockLeases(bench.gpu) as leases:
        for done, (domain, pair) in enumerate(pairs):
            progress(done, len(pairs), f"{domain} {pair[0]} and {format_mhz(pair[1])} MHz")
            try:
                with leases.hold(_clocks(domain, pair[0])):
                    bench.clock.sleep_s(_SETTLE_S)
                    switches += _between(bench, domain, pair, repeats)
            except (NotAppliedError, NotSupportedError) as exc:
                warnings[str(exc)] = None
    if not switches:
        raise NotAppliedError(next(iter(warnings)), hint="another program may set clocks too")
    return tuple(switches), tuple(warnings)


def measure_moves(
    bench: Bench, for_s: float, progress: Progress
) -> tuple[tuple[ClockReading, ...], tuple[ClockReading, ...]]:
    """Watch the driver move the core clock itself, for a while; return moves up and moves down."""
    rows: defaultdict[tuple[Reader, bool], list[Row]] = defaultdict(list)
    cycles = max(1, round(for_s / (2 * _HOT_S)))
    for cycle in range(cycles):
        progress(cycle, cycles, "hot products, then none")
        polls: list[tuple[float, float]] = []

        def look(polls: list[tuple[float, float]] = polls) -> None:
            polls += bench.poll(Domain.CORE, 2 * _HOT_S)

        ran = bench.kernels.run(look, Domain.CORE, _HOT_S)
        parts = (ran[ran[:, 2] == hot].T for hot in (1.0, 0.0))
        series = [(Reader.KERNELS, at_s, 1.0 / took_s) for at_s, took_s, _ in parts]
        for by, at_s, speeds in [*series, (Reader.NVML, *np.array(polls).T)]:
            for left, arrived, up in moves(speeds, _WIDTH):
                took_s, every_s = at_s[arrived] - at_s[left], np.median(np.diff(at_s))
                rows[by, up].append((math.nan, math.nan, float(took_s), 0.0, float(every_s)))
    ups, downs = ([(by, rows[by, way]) for by in Reader] for way in (True, False))
    return _readings(ups), _readings(downs)


def _between(bench: Bench, domain: Domain, pair: Pair, repeats: int) -> Iterator[Switch]:
    """Change a clock there and back, over and over; it is at the first when this begins."""
    seen: defaultdict[Pair, list[dict[Reader, Row]]] = defaultdict(list)
    tails_s = dict.fromkeys(pair, _TAIL_S)
    for origin, target in (pair, pair[::-1]) * repeats:
        while not (rows := bench.switch(domain, (origin, target), tails_s[target])):
            tails_s[target] *= _LONGER
            bench.ask(domain, origin)
            bench.clock.sleep_s(_SETTLE_S)
        tails_s[target] = max(_LEAST_TAIL_S, _TAIL_TIMES * sum(rows[Reader.KERNELS][1:3]))
        seen[origin, target].append(rows)
    for (origin, target), every in seen.items():
        table = np.array([rows[Reader.KERNELS] for rows in every])
        call_s, switching_s, transition_s, stall_s, _ = table.T
        delay_s = np.maximum(0.0, switching_s + transition_s - call_s - stall_s)
        p05_s, median_s, p95_s = (float(q) for q in np.quantile(delay_s, (0.05, 0.5, 0.95)))
        yield Switch(
            domain=domain,
            from_mhz=origin,
            to_mhz=target,
            call_s=float(np.median(call_s)),
            delay_s=median_s,
            delay_p05_s=p05_s,
            delay_p95_s=p95_s,
            jitter_s=robust_sigma(delay_s - median_s),
            stall_s=float(np.median(stall_s)),
            repeats=len(every),
            call=_quantiles(call_s),
            readings=_readings((by, [r[by] for r in every if by in r]) for by in Reader),
        )


def _clocks(domain: Domain, mhz: int | None) -> Clocks:
    return Clocks(core_mhz=mhz) if domain is Domain.CORE else Clocks(mem_mhz=mhz)


def _row(at_s: Floats, values: Floats, called_s: float, returned_s: float) -> Row | None:
    """Return what a change took; ``None`` where its new level does not hold for an eighth."""
    start, called = np.searchsorted(at_s, (called_s - _LEAD_S / 2, called_s))
    tail = int(len(at_s) - called) // 8
    if min(called - start, tail) < _LEAST_READINGS:
        return None
    found = find_change(values[start:], int(called - start), tail)
    if found is None or start + found[1] > len(at_s) - tail:
        return None
    left, arrived = start + found[0], start + found[1]
    usual, longest = np.median(values[arrived:]), np.max(values[left:arrived], initial=0.0)
    stall_s = float(longest - usual) if longest > _STALL * usual else 0.0
    left_s, every_s = float(at_s[left]), float(np.median(np.diff(at_s)))
    return returned_s - called_s, left_s - called_s, float(at_s[arrived]) - left_s, stall_s, every_s


def _readings(rows_by: Iterable[tuple[Reader, list[Row]]]) -> tuple[ClockReading, ...]:
    readings = []
    for by, rows in rows_by:
        if rows:
            _, switching_s, transition_s, _, every_s = np.array(rows).T
            called = not np.isnan(switching_s).any()
            readings.append(
                ClockReading(
                    by=by,
                    every_s=float(np.median(every_s)),
                    switching=_quantiles(switching_s) if called else None,
                    transition=_quantiles(transition_s),
                )
            )
    return tuple(readings)


def _quantiles(values_s: Floats) -> Quantiles:
    median_s, p95_s, p99_s = (float(q) for q in np.quantile(values_s, (0.5, 0.95, 0.99)))
    return Quantiles(median_s=median_s, p95_s=p95_s, p99_s=p99_s, n=len(values_s))
