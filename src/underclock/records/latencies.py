"""How long one GPU takes to change its clocks.

A change has three parts, and a switch keeps them apart. First the setter *call* blocks the host;
then, counted from the call's return, the GPU is not at the new clock for the *delay*; then it may
*stall*, doing no work at all, before it works at the new clock.
"""

from enum import StrEnum
from typing import Annotated, Self

import msgspec

from underclock.errors import DataError
from underclock.records.common import SCHEMAS, Clocks, Evidence, Mhz, Number, Record
from underclock.records.samples import GpuInfo, Provenance
from underclock.units import Domain

LONGEST_S = 60.0  # slower than any driver by far
Seconds = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_S)]


class Reader(StrEnum):
    """What shows that a clock changes."""

    KERNELS = "kernels"  # durations of small kernels of equal work
    NVML = "nvml"  # the clock that NVML reports, polled


class Quantiles(Record, frozen=True, kw_only=True):
    """A duration over ``n`` repeats, in s."""

    median_s: float
    p95_s: float
    p99_s: float
    n: int


class ClockReading(Record, frozen=True, kw_only=True):
    """What one reader shows of changes of a clock."""

    by: Reader
    every_s: float  # time between two readings, median: nothing is seen finer
    # from a setter's call to its first effect; ``None`` of the driver's own moves
    switching: Quantiles | None = None
    transition: Quantiles  # from the first effect until the clock is the new one and stays so


class Switch(Record, frozen=True, kw_only=True):
    """What changing one clock from one value to another takes."""

    domain: Domain  # whose clock
    from_mhz: Mhz | None  # clock before; ``None`` is auto
    to_mhz: Mhz | None  # clock asked for; ``None`` gives it back to the driver
    call_s: Seconds  # how long the setter blocks the host, median
    # from the call's return until the clock is the new one, or until the stall before that begins,
    # median; 0 where that is before the call returns
    delay_s: Seconds
    delay_p05_s: Seconds  # one in twenty delays is shorter; and longer than ``delay_p95_s``
    delay_p95_s: Seconds
    jitter_s: Seconds  # standard deviation of the delay, estimated robustly
    stall_s: Seconds  # after the delay, time in which no work was done, median
    repeats: Number  # measurements that these rest on; 0 where assumed
    outliers: Number = 0  # measurements dropped as outliers
    call: Quantiles | None = None  # how long the setter blocks; ``None`` where assumed
    # by each reader that showed the change; the figures above are by kernels
    readings: tuple[ClockReading, ...] = ()

    def __post_init__(self) -> None:
        if not self.delay_p05_s <= self.delay_s <= self.delay_p95_s:
            raise ValueError("delay_s must lie between delay_p05_s and delay_p95_s")

    @property
    def total_s(self) -> float:
        """From the call until the GPU works at the new clock."""
        return self.call_s + self.delay_s + self.stall_s


class LatencyTable(Record, frozen=True, kw_only=True, tag_field="kind", tag="latencies"):
    """How long changes of clocks take on one GPU, for a sample of them.

    Attributes:
        evidence: How they were obtained; ``None`` where assumed.
        gpu: The GPU they belong to; ``None`` where assumed, for any GPU.
        provenance: How they came about; ``None`` where assumed.
        switches: No two from and to the same clocks of one domain.
    """

    schema: int = SCHEMAS["latencies"]
    evidence: Evidence | None
    gpu: GpuInfo | None
    provenance: Provenance | None = None
    switches: tuple[Switch, ...]
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.switches:
            raise ValueError("a latency table needs at least one switch")
        if len({_key(switch) for switch in self.switches}) < len(self.switches):
            raise ValueError("a latency table has one row for each switch")

    @classmethod
    def constant(cls, duration_s: float, *, call_s: float = 0.0) -> Self:
        """Assume one delay, without jitter, for every change of every clock of any GPU."""
        switches = tuple(
            Switch(
                domain=domain,
                from_mhz=None,
                to_mhz=None,
                call_s=call_s,
                delay_s=duration_s,
                delay_p05_s=duration_s,
                delay_p95_s=duration_s,
                jitter_s=0.0,
                stall_s=0.0,
                repeats=0,
            )
            for domain in Domain
        )
        return cls(evidence=None, gpu=None, switches=switches)

    @classmethod
    def free(cls) -> Self:
        """Assume that changing clocks takes no time, as arXiv 2601.08539 does."""
        return cls.constant(0.0)

    @property
    def constant_s(self) -> float | None:
        """What every change takes, and nothing else; ``None`` where they differ or scatter."""
        totals_s = {switch.total_s for switch in self.switches if switch.from_mhz is None}
        further = any(s.jitter_s or s.stall_s or s.call_s or s.from_mhz for s in self.switches)
        return totals_s.pop() if len(totals_s) == 1 and not further else None

    def check_gpu(self, info: GpuInfo) -> tuple[str, ...]:
        """Make sure that the table may be used for a GPU; return notes for the reader.

        Raises:
            DataError: It was measured on another GPU.
        """
        if self.gpu is None:
            return ()
        if self.gpu.name != info.name:
            raise DataError(
                f"the latencies are those of {self.gpu.name}, not of {info.name}",
                hint="name latencies of this GPU, or a duration such as 6ms",
            )
        then, now, notes = self.gpu, info, list[str]()
        if then.is_another_board(now):
            notes.append(f"on board {then.uuid}, and this is board {now.uuid}")
        if then.driver != now.driver:
            drivers = (each.driver or "unknown" for each in (then, now))
            notes.append("with driver {}, and this is driver {}".format(*drivers))
        return tuple(f"the latencies were measured {note}" for note in notes)

    def answer(self, domain: Domain, from_mhz: int | None, to_mhz: int | None) -> Switch:
        """Return the sampled switch that stands for another; where in doubt, the slower one.

        The target decides most of the delay, the origin little (LATEST, arXiv 2502.20075). So: the
        switch itself; else the slowest to the same target, from wherever; else the slowest to the
        nearest sampled target below and to the nearest above; else, where the target is auto or
        only auto was sampled, the slowest of the domain.

        Raises:
            DataError: No switch of the domain was sampled.
        """
        same = (s for s in self.switches if _key(s) == (domain, from_mhz, to_mhz))
        return next(same, None) or self.from_anywhere(domain, to_mhz)

    def from_anywhere(self, domain: Domain, to_mhz: int | None) -> Switch:
        """Return the switch for a target whose origin was not sampled; errors as of `answer`."""
        known = self.targets(domain)
        if not known:
            hint = "leave that clock at auto: a GPU that cannot lock it cannot be measured"
            raise DataError(f"the latencies have no switch of the {domain} clock", hint=hint)
        # What stands for a target: itself, its sampled neighbours on both sides, or all.
        near = known
        if to_mhz in known:
            near = (to_mhz,)
        elif to_mhz is not None:
            below = [mhz for mhz in known if mhz is not None and mhz < to_mhz][-1:]
            above = [mhz for mhz in known if mhz is not None and mhz > to_mhz][:1]
            near = (*below, *above) or known
        return max((self._slowest_to(domain, mhz) for mhz in near), key=_until_there_s)

    def targets(self, domain: Domain) -> tuple[int | None, ...]:
        """Return the clocks that were asked for, ascending, auto last."""
        targets_mhz = {switch.to_mhz for switch in self.switches if switch.domain is domain}
        return tuple(sorted(targets_mhz, key=lambda mhz: (mhz is None, mhz)))

    def slowest(self) -> tuple[Switch, ...]:
        """Return for every target, core first, the switch that takes longest to get there."""
        return tuple(
            self._slowest_to(domain, mhz) for domain in Domain for mhz in self.targets(domain)
        )

    def _slowest_to(self, domain: Domain, to_mhz: int | None) -> Switch:
        there = [s for s in self.switches if (s.domain, s.to_mhz) == (domain, to_mhz)]
        return max(there, key=_until_there_s)


class DriverMoves(Record, frozen=True, kw_only=True, tag_field="kind", tag="driver moves"):
    """How the driver itself moves the core clock under its power limit, nothing being set.

    A move has no call, so this is no `LatencyTable`, and `plan` does not take it.
    """

    schema: int = SCHEMAS["driver moves"]
    evidence: Evidence
    gpu: GpuInfo
    provenance: Provenance
    up: tuple[ClockReading, ...]
    down: tuple[ClockReading, ...]
    warnings: tuple[str, ...]


def _until_there_s(switch: Switch) -> float:
    """Return from the call's return until the GPU works at the new clock."""
    return switch.delay_s + switch.stall_s


def _key(switch: Switch) -> tuple[Domain, int | None, int | None]:
    return switch.domain, switch.from_mhz, switch.to_mhz


def mhz_of(clocks: Clocks, domain: Domain) -> int | None:
    """Return one of two clocks."""
    return clocks.core_mhz if domain is Domain.CORE else clocks.mem_mhz


def changed(before: Clocks, after: Clocks) -> tuple[tuple[Domain, int | None, int | None], ...]:
    """Return which clocks differ, core first, and from what to what."""
    both = ((domain, mhz_of(before, domain), mhz_of(after, domain)) for domain in Domain)
    return tuple(change for change in both if change[1] != change[2])
