"""What the rest of the program may ask of hardware, and what a user writes after ``--gpu``.

Three seams. `Gpu` reads and locks clocks. `Launcher` runs kernels. `Clock` reads and passes time,
so that simulated time costs none. `Measurer` stands on them: it holds clocks and measures kernels,
and is all that the measuring stage sees; a table can be one without any GPU behind it.

A name is parsed once (`parse_gpu`), so that a command refuses what the GPU cannot do before
anything is opened.

A round of a mix is the sequence of kernels, over and over, with its co-load between: pieces of some
launches of a heater and some idling, all alike, after launches that the mix names; in a short round
there is one, at its end. Its launches differ by their place: the kernels of the sequence in
turn, then the heater, then idling, each piece of it by itself.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, Self

from underclock.errors import NotSupportedError, UsageError
from underclock.records import Clocks, Evidence, GpuInfo, Kernel, Mix, Step, ThrottleReason
from underclock.units import Domain, name_hint

if TYPE_CHECKING:
    from underclock.arrays import Floats


SMALL_S = 20e-6
"""What a small kernel takes at the highest clocks."""


class Clock(Protocol):
    """Time, from a fixed but unknown origin."""

    def now_s(self) -> float:
        """Return monotonic time in s."""

    def sleep_s(self, duration_s: float) -> None:
        """Let time pass."""


class Gpu(Protocol):
    """One GPU. Opening it, and every read, leaves the device as it was.

    Every method may raise `DeviceError`.
    """

    def info(self) -> GpuInfo:
        """Return its name, UUID, driver and power limit."""

    def supported_mem_mhz(self) -> tuple[int, ...]:
        """Return every memory clock the driver lists, ascending."""

    def supported_core_mhz(self, mem_mhz: int | None = None) -> tuple[int, ...]:
        """Return every core clock the driver lists at a memory clock (any, if ``None``)."""

    def observed(self) -> Clocks:
        """Return the clocks the GPU runs at now; they mean little unless it is busy."""

    def energy_j(self) -> float:
        """Return the energy counter: a staircase; the call may block for milliseconds."""

    def power_w(self) -> float | None:
        """Return the driver's idea of power now, averaged as it likes; ``None`` if unknown."""

    def temperature_c(self) -> float | None:
        """Return the GPU's temperature; ``None`` if unknown."""

    def throttle_reasons(self) -> ThrottleReason | None:
        """Return why the clocks are what they are; ``None`` if unknown."""

    def lock(self, clocks: Clocks) -> None:
        """Hold these clocks; a domain that is ``None`` is left alone.

        Raises:
            NotSupportedError: A domain cannot be locked, or not there; another may have been.
            NotPermittedError: This process may not lock clocks.
        """

    def unlock(self) -> None:
        """Give every clock back to the driver; harmless when nothing is locked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a running loop is, on the GPU's own clock."""

    launches: int  # completed so far
    elapsed_s: float  # from the loop's start to the last completion
    work: float = 0.0  # launches inside rounds, the one that runs in part, where that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """How long launches took inside a loop, on the GPU's own clock."""

    kernel_s: tuple[float, ...]  # mean of each place of the sequence
    hot_s: float | None = None  # mean of a launch of the heater; None without one
    idle_s: float | None = None  # mean idling in a round; None without any
    # Of that in each piece of co-load, in order; empty without any
    pieces_s: tuple[float, ...] = ()


class Loop(Protocol):
    """Kernels being launched over and over."""

    def progress(self) -> Progress:
        """Return how far it is."""

    def durations(self, for_s: float) -> Durations:
        """Watch launches for a while, one round at least; return how long each took.

        Raises:
            NotSupportedError: Nothing here can time them, or another profiler does.
        """


class Launcher(Protocol):
    """Runs kernels on one GPU."""

    def loop(
        self, kernels: Sequence[Kernel], mix: Mix | None = None
    ) -> AbstractContextManager[Loop]:
        """Keep launching a sequence from entry to exit.

        Args:
            kernels: The sequence; may be empty where a mix has other parts.
            mix: What it runs with; by default nothing.

        Returns:
            The loop; one launch of it is a round: the whole sequence, ``mix.launches`` times, and
            its co-load.

        Raises:
            NoRoomError: The heater does not fit into memory.
        """

    @property
    def look_s(self) -> float:
        """What it takes to begin a look at launches and to read it, besides looking on."""

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of numbers taken so far must know of what ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one measuring window gave."""

    time_s: float  # mean duration of one launch
    energy_j: float  # mean energy of one launch
    observed: Clocks | None = None  # clocks read back under load; None where nothing could be read
    window_s: float | None = None  # length of the window; None when unknown
    ticks: int | None = None  # energy-counter steps in it; None when unknown
    temperature_c: float | None = None  # at its end; None when unknown
    throttle_reasons: ThrottleReason | None = None  # at its end; None when unknown
    core_mhz: float | None = None  # mean core clock over the window; None when unknown
    core_spread_mhz: float | None = None  # standard deviation of its readings; None when unknown
    durations: Durations | None = None  # of the launches inside; None where they were not asked for


class Capability(StrEnum):
    """What there may be to ask of what a ``--gpu`` option names; ends the sentence "it cannot"."""

    READ = "show what its clocks do"
    RUN = "run kernels, be warmed by them and run a whole step"
    LOCK = "hold clocks"
    SCHEDULE = "run a schedule of clocks"
    MIX = "run kernels with co-load and time them inside"


class Measurer(Protocol):
    """Holds clocks and measures kernels."""

    # What it runs, as it was captured now; None where it runs what it is given
    step: Step | None
    evidence: Evidence  # what its numbers are
    capabilities: frozenset[Capability]  # what it can be asked

    def info(self) -> GpuInfo:
        """Return which GPU answers."""

    def brings(self) -> tuple[str, tuple[Kernel, ...]]:
        """Return the name and the kernels of a workload of its own; none where it has none."""

    def can_measure(self, kernel: Kernel, clocks: Clocks) -> bool:
        """Whether there is an answer for a kernel at these clocks."""

    def settings(self) -> tuple[Clocks, ...]:
        """Return every clock pair that can be held, auto included."""

    def core_clocks(self) -> tuple[int, ...]:
        """Return every core clock there is, whether it may be held or not, ascending."""

    def repeats(self, kernel: Kernel, clocks: Clocks) -> int | None:
        """Return how many different answers there are; ``None`` where every one is a new one."""

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the numbers so far must know."""

    def now_s(self) -> float:
        """Return this measurer's own time, which is virtual on a simulated GPU."""

    def warm(self, kernels: Sequence[Kernel]) -> float | None:
        """Bring the GPU to the temperature it has when these kernels run; return it in °C.

        ``None`` where it cannot be read.

        Raises:
            MeasurementError: It cannot run kernels.
        """

    def takes_s(self, launch_s: float, *, timed: bool = False) -> float:
        """Return about how long it takes to measure a kernel whose launch takes that long.

        Longer, where its launches are timed as well.
        """

    def hold(self, clocks: Clocks) -> AbstractContextManager[None]:
        """Hold clocks from entry to exit; auto clocks touch nothing."""

    def measure(
        self,
        kernels: Sequence[Kernel],
        repeat: int = 0,
        *,
        mix: Mix | None = None,
        timed: bool = False,
    ) -> Reading:
        """Measure a sequence at the clocks now held.

        Args:
            kernels: One for an isolated kernel; a whole step's launches for the step in situ.
            repeat: Which repeat this is; a table answers with the row of that number.
            mix: What it runs with; by default nothing. Time and energy are those of a round.
            timed: Whether to watch the launches inside too.

        Raises:
            MeasurementError: The numbers cannot be trusted.
        """


class SmallKernels(Protocol):
    """Runs small kernels of equal work, as long as a clock makes them, and times them."""

    def run(self, during: Callable[[], None], domain: Domain, hot_s: float = 0.0) -> "Floats":
        """Run them while something is done, bound by a domain's clock.

        Where hot products are wanted, they run among them for so long, then for as long not.

        Returns:
            Start on the host's clock and duration in s, and whether products ran among them (1, 0).
            Shape (N, 3).
        """


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Return monotonic time in s."""
        return time.perf_counter()

    def sleep_s(self, duration_s: float) -> None:
        """Let time pass."""
        if duration_s > 0:
            time.sleep(duration_s)  # noqa: TID251 - the one place that may


class GpuKind(StrEnum):
    """What answers behind a name."""

    SIMULATED = "sim"
    REPLAYED = "replay"
    REAL = "nvml"


_CAPABILITIES = {
    GpuKind.SIMULATED: frozenset(Capability),
    GpuKind.REPLAYED: frozenset(),
    GpuKind.REAL: frozenset({Capability.READ, Capability.RUN, Capability.LOCK, Capability.MIX}),
}
_EXAMPLES = dict(zip(GpuKind, ("sim:rtx3080ti", "replay:TABLE.csv", "nvml:0"), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuName:
    """What follows ``--gpu``, taken apart."""

    text: str
    kind: GpuKind
    name: str = ""  # of a simulated GPU's model, or of a file
    unit: int = 0  # which simulated GPU of that model; unit 0 is the model itself
    index: int = 0  # of a real GPU, as the driver counts

    @property
    def is_simulated(self) -> bool:
        """Whether it is simulated."""
        return self.kind is GpuKind.SIMULATED

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do, permission apart."""
        return _CAPABILITIES[self.kind]

    def need(self, capability: Capability) -> None:
        """Refuse a GPU that cannot do what is asked."""
        if capability in self.capabilities:
            return
        hint = f"name a GPU that can, for example {_EXAMPLES[GpuKind.SIMULATED]}"
        cannot = f"{self.text!r} cannot {capability}"
        if self.kind is GpuKind.REPLAYED:
            raise UsageError(f"{cannot}: a table only repeats what was measured before", hint=hint)
        raise NotSupportedError(
            f"{cannot}: this version does that on simulated GPUs only", hint=hint
        )


def parse_gpu(text: str) -> GpuName:
    """Take apart ``sim:NAME``, ``sim:NAME#UNIT``, ``replay:TABLE.csv`` or ``nvml:INDEX``.

    Nothing after ``nvml`` is the first real GPU. A unit may be a board that has a name; with
    ``#smooth`` at the end any does what equations say.
    """
    kind, _, rest = text.partition(":")
    if kind not in list(GpuKind):
        forms = ", ".join(_EXAMPLES.values())
        near = name_hint(kind, list(GpuKind))
        raise UsageError(f"unknown GPU {text!r}", hint=f"{near}; write {forms}")
    if kind == GpuKind.REAL:
        if rest and not (rest.isascii() and rest.isdecimal()):
            raise UsageError(f"cannot read {rest!r} as a GPU's number", hint="write nvml:0")
        return GpuName(text=text, kind=GpuKind.REAL, index=int(rest or 0))
    if not rest:
        hint = f"write for example {_EXAMPLES[GpuKind(kind)]}"
        raise UsageError(f"{text!r} names no GPU", hint=hint)
    if kind == GpuKind.REPLAYED:
        return GpuName(text=text, kind=GpuKind.REPLAYED, name=rest)
    # It loads NumPy, and a process that holds clocks names no simulated GPU.
    from underclock.gpus.models import SMOOTH, board_names  # noqa: PLC0415

    kind_of = SMOOTH if rest.endswith(SMOOTH) else ""
    name, mark, unit = rest.removesuffix(SMOOTH).rpartition("#")
    if not mark or rest.endswith(".json") or rest in board_names():
        return GpuName(text=text, kind=GpuKind.SIMULATED, name=rest)
    if not (unit.isascii() and unit.isdecimal()):
        named = ", ".join(f"sim:{board}" for board in (*board_names(), f"{name}{SMOOTH}"))
        raise UsageError(
            f"cannot read {unit!r} as a simulated GPU's unit",
            hint=f"write for example sim:{name or 'rtx3080ti'}#3; boards with a name are {named}",
        )
    return GpuName(text=text, kind=GpuKind.SIMULATED, name=name + kind_of, unit=int(unit))


@dataclass(frozen=True, slots=True)
class Turn:
    """Launches of one place in a row."""

    place: int
    times: int


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a mix."""

    kernels: int  # length of the sequence; 0 where nothing runs but co-load
    mix: Mix

    @classmethod
    def of(cls, kernels: int, mix: Mix | None) -> Self:
        """Describe a round of a sequence of so many kernels; refuse one in which nothing runs."""
        mix = mix or Mix()
        made = cls(kernels if mix.launches else 0, mix)
        if not (made.kernels or mix.hot or mix.idle_s):
            raise ValueError("there is no kernel to launch, and no co-load")
        if mix.after and mix.after[-1] > made.length:
            raise ValueError(
                f"co-load would run after launch {mix.after[-1]} of a round of {made.length}"
            )
        return made

    @property
    def length(self) -> int:
        """Launches of its kernels."""
        return self.kernels * self.mix.launches

    @property
    def hot(self) -> int:
        """Place of the heater."""
        return self.kernels

    @property
    def idle(self) -> int:
        """Place of idling in the first piece of co-load; those of later pieces follow."""
        return self.kernels + 1

    def turns(self) -> tuple[Turn, ...]:
        """Return what runs, in order."""
        turns: list[Turn] = []
        begin = 0
        for piece, end in enumerate(self.mix.after or (self.length,)):
            turns += [*self._between(begin, end), *self.coload(piece)]
            begin = end
        return (*turns, *self._between(begin, self.length))

    def coload(self, piece: int) -> tuple[Turn, ...]:
        """Return what runs in a piece of its co-load, counted from 0."""
        mix = self.mix
        hot = (Turn(self.hot, mix.hot // mix.pieces),) if mix.hot else ()
        return (*hot, Turn(self.idle + piece, 1)) if mix.idle_s else hot

    def _between(self, begin: int, end: int) -> Sequence[Turn]:
        """Return launches of kernels from one to another, counted through the round."""
        if self.kernels == 1:
            return [Turn(0, end - begin)] if end > begin else []
        return [Turn(launch % self.kernels, 1) for launch in range(begin, end)]

    def launches(self) -> dict[int, int]:
        """Return how many launches of each place are in a round."""
        counted: Counter[int] = Counter()
        for turn in self.turns():
            counted[turn.place] += turn.times
        return dict(counted)

    def durations(self, mean_s: Mapping[int, float]) -> Durations:
        """Return what launches took, by the mean duration of a launch of each place."""
        pieces = range(self.mix.pieces if self.mix.idle_s else 0)
        idle_s = tuple(mean_s[self.idle + piece] for piece in pieces)
        return Durations(
            kernel_s=tuple(mean_s[place] for place in range(self.kernels)),
            hot_s=mean_s[self.hot] if self.mix.hot else None,
            idle_s=sum(idle_s) if idle_s else None,
            pieces_s=idle_s,
        )
