"""GPU models: clock tables, constants, sensors, how clocks follow their locks, and links.

`data/` holds one JSON file a GPU: published figures, and constants fitted to a measured sweep where
there is one (``make calibrate``). A user's calibration is a file of the same form.

A collective over links is a ring, as NCCL counts it (``src/graph/tuning.cc``, protocol Simple):
8.4 µs to begin, 3.4 µs a send over NVLink or 5.7 µs over PCIe, and its bytes at a part of the
link's bandwidth. Two H200s reached 0.50 to 0.66 of theirs (docs/evidence/h200/parallel.md):
gathers, scatters and reductions all get the mean, on every link. Bandwidths are of one direction,
from NVIDIA's data sheets and the PCIe specification (16 lanes). GPUs without peer-to-peer, such as
GeForce cards, go through host memory and are slower than this.
"""

import dataclasses
import functools
import json
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from underclock.errors import DataError, UsageError
from underclock.physics.cap import SIMULATED, Fading
from underclock.physics.constants import GpuConstants, KernelConstants, Throughput
from underclock.physics.costs import duration_s, voltage_v
from underclock.records import SCHEMAS, Kernel, Kind, check_schema
from underclock.units import Domain, name_hint

_NAMES = ("rtx3080ti", "a4000", "a40", "a100", "titanx", "h200")
_BOARDS = ("rtx3080ti#paper",)
SMOOTH = "#smooth"  # after a name: boards that do what equations say, and are one like another
_POSITIVE = {"exponent", "floor_v", "knee_mhz", "thermal_tau_s", "boost_mhz", "boost_step_c"}
_ANY_SIGN = {"ambient_c", "boost_knee_c"}
_CYCLES = ("core_mcycles", "dram_mcycles", "xbar_mcycles", "fixed_s")
_GREATEST = 1e30  # of a constant: what is computed from a few of them stays finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """How long a call blocks: a share of the calls takes no longer than its point.

    Shares ascend from 0 to 1, with straight lines between.
    """

    shares: tuple[float, ...]
    points_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.shares) != len(self.points_s) or self.shares[0] != 0 or self.shares[-1] != 1:
            raise ValueError("a latency needs one point for each share from 0 to 1")
        if list(self.shares) != sorted(self.shares) or list(self.points_s) != sorted(self.points_s):
            raise ValueError("the shares and points of a latency must not fall")

    def draws(self, random: np.random.Generator) -> Iterator[float]:
        """Yield one duration in s after another."""
        while True:
            yield from np.interp(random.random(256), self.shares, self.points_s).tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """A power reading: updated every ``every_s``, and then the mean over ``seen_s`` before."""

    every_s: float
    seen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensors:
    """The sensors of one architecture."""

    counter_tick_s: float
    usage: Meter  # that ``nvmlDeviceGetPowerUsage`` shows
    instant: Meter  # that field 186, ``NVML_FI_DEV_POWER_INSTANT``, shows
    energy_call: Latency  # for which reading the energy counter blocks


# Measured on an H200: median 3 ms, 99 % within 15 ms. The ends are assumed.
_ENERGY_CALL = Latency(shares=(0.0, 0.5, 0.9, 0.99, 1.0), points_s=(2e-3, 3e-3, 5e-3, 15e-3, 20e-3))
_WHOLE = Meter(every_s=0.1, seen_s=0.1)
_QUARTER = Meter(every_s=0.1, seen_s=0.025)
_SECOND = Meter(every_s=0.1, seen_s=1.0)

# Source: Yang et al., SC'24.
AMPERE = Sensors(counter_tick_s=0.1, usage=_SECOND, instant=_WHOLE, energy_call=_ENERGY_CALL)
GA100 = Sensors(counter_tick_s=0.1, usage=_QUARTER, instant=_QUARTER, energy_call=_ENERGY_CALL)
HOPPER = Sensors(counter_tick_s=0.1, usage=_SECOND, instant=_QUARTER, energy_call=_ENERGY_CALL)

Bounds = tuple[int, int]
"""Least and greatest clock of a lock in MHz."""

# Measured on an A800: median 4.5 ms, mean 6 ms, 99 % within 13 ms. No log-normal has all three;
# a median and a 99th percentile like these would give it a mean of 5 ms.
_SETTER = Latency(shares=(0.0, 0.5, 0.75, 0.99, 1.0), points_s=(3.5e-3, 4.5e-3, 7e-3, 13e-3, 16e-3))


_REPORTED = {
    r"[BG]?B[123]00|RTX 50\d\d|Blackwell": (1e-5, 1e-4, "of Blackwell GPUs, unpublished"),
    r"G?H[128]00|H20": (6e-3, 0.1, "of Hopper GPUs, second-hand"),
    r"A100|A40": (3e-3, 13e-3, "of A100s in executed pipelines, and of calls on an A800"),
    r"V100": (24.5e-3, 24.5e-3, "of a V100"),
    r"Quadro RTX \d+|TITAN RTX|RTX 20\d\d|T4": (0.15, 0.15, "of a Quadro RTX 6000, second-hand"),
    r"A\d+0|A\d000|RTX [34]0\d\d|L4|L40": (6e-3, 0.15, "of Hopper and Turing GPUs"),
}
"""What names of models hold, as whole words, and what is reported of those GPUs."""


def reported_latency(model: str) -> tuple[float, float, str] | None:
    """Return what is reported of a GPU model, by its name: a first guess for a board.

    Returns:
        The least and the most from call to new clock, in s, and of which GPUs that is reported;
        ``None`` where nothing is.
    """
    for names, reported in _REPORTED.items():
        if re.search(rf"\b(?:{names})S?(?: Ti| D)?\b", model, re.IGNORECASE):
            return reported
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchingModel:
    """What a change of clocks takes.

    First the call blocks; some time after it returns the clock changes. That delay depends on
    the target more than on where the clock comes from (LATEST, arXiv 2502.20075), so each
    target has its own, the same on every GPU of a model. The defaults are assumed: the published
    figures reach from 10 µs to 150 ms, and memory is believed to be much dearer than core.
    """

    setter: Latency = _SETTER  # how long a call that sets or resets a lock blocks
    # median delay over the targets of the core clock, giving it back to the driver included
    core_s: float = 0.020
    mem_s: float = 0.120  # median delay over the targets of the memory clock
    target_spread: float = 0.3  # standard deviation over targets, of the delay's logarithm
    jitter: float = 0.1  # standard deviation over switches to one target, of the delay's logarithm
    mem_stall_s: float = 0.010  # nothing executes for this long when the memory clock changes

    def usual_s(self, model: str, domain: Domain, bounds: Bounds | None) -> float:
        """Return the delay that a target has without jitter; bounds of ``None`` give it back.

        The model is the GPU's name: it decides which targets are slow.
        """
        median_s = self.core_s if domain is Domain.CORE else self.mem_s
        target = "auto" if bounds is None else f"{bounds[0]}-{bounds[1]}"
        return median_s * math.exp(self.target_spread * _deviation(f"{model}/{domain}/{target}"))

    def delay_s(
        self, model: str, domain: Domain, bounds: Bounds | None, random: np.random.Generator
    ) -> float:
        """Return the delay of one switch."""
        jitter = math.exp(self.jitter * float(random.standard_normal()))
        return self.usual_s(model, domain, bounds) * jitter


@functools.lru_cache(maxsize=4096)
def _deviation(target: str) -> float:
    """Return a target's deviation from the mean, always the same: a standard normal draw."""
    return float(np.random.default_rng(zlib.crc32(target.encode())).standard_normal())


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Mean absolute relative errors against measured rows, as fractions."""

    time: float
    power: float
    rows: int

    def __str__(self) -> str:
        return f"time {self.time:.1%}, power {self.power:.1%}, {self.rows} rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Where a model's constants come from."""

    source: str = "uncalibrated"  # table they were fitted to, or why they were not
    rows: int = 0  # rows of the table
    date: str = ""  # when, as YYYY-MM-DD
    fit: Accuracy | None = None  # on the table itself
    # on kernels that took no part in the shared constants, from four of their rows
    held_out: Accuracy | None = None
    # at locked clocks of boards that took no part, with one constant of their kernel fitted
    locked: Accuracy | None = None
    note: str = ""  # what else went in

    def __str__(self) -> str:
        fitted = f"fitted to {self.rows} rows of {self.source} on {self.date}"
        fit = self.fit and f"mean error {self.fit}"
        held_out = self.held_out and f"on held-out kernels {self.held_out}"
        locked = self.locked and f"at locked clocks of other boards {self.locked}"
        parts = (fitted if self.rows else self.source, fit, held_out, locked, self.note)
        return "; ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnKernel:
    """A kernel that a sweep measured, with the constants that explain it."""

    kernel: Kernel
    constants: KernelConstants


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLockEffect:
    """What holding the memory clock alone does by itself, whatever the clock; 1 is nothing.

    arXiv 2601.08539's Table 1 has it at auto's own clocks, and hardly where the core is held too;
    the cause is unknown, and a public sweep of the same GPU model does not show it.
    """

    time: float = 1.0  # over what kernels take without
    power: float = 1.0  # over what the board draws without, and over what its power loop settles at

    def __post_init__(self) -> None:
        if not (0.5 < self.time < 2.0 and 0.5 < self.power < 2.0):  # noqa: PLR2004 - no GPU's
            raise ValueError(f"a memory lock changes time and power by little, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One GPU model."""

    schema: int = SCHEMAS["GPU model"]
    name: str  # as the driver gives it
    driver: str  # driver version the simulation answers with
    core_mhz: tuple[int, ...]  # core clocks of the table, ascending
    mem_mhz: tuple[int, ...]  # memory clocks of the table, ascending
    # greatest core clock at the least memory clock; above it the memory runs at its second
    low_mem_core_mhz: int | None = None
    memory_lockable: bool = True  # whether the driver takes memory locks
    # power limit by default; the least and the greatest that may be set
    limit_w: tuple[float, float, float]
    cap_margin_w: float = 2.0  # the power loop settles this far under the limit
    # no kernel draws more, however low the mean: what would runs slower than the clock that is
    # read. ``None`` where no such peak was seen
    peak_w: float | None = None
    calibration: Calibration = Calibration()
    constants: GpuConstants
    # for kernels known by their work; ``None`` where only its own kernels can be run
    throughput: Throughput | None = None
    own: tuple[OwnKernel, ...] = ()  # kernels of the sweep it was fitted to
    # what a change of clocks takes; ``None`` for the defaults
    switching: SwitchingModel | None = None
    sensors: Sensors | None = None  # what it measures with; ``None`` for what its board has
    # memory clock to which computing demotes it; ``None`` where it stays at its highest
    p2_mem_mhz: int | None = None
    # clocks whose locks the driver accepts and the GPU does not follow
    ignored_locks: tuple[Domain, ...] = ()
    memory_lock: MemoryLockEffect = MemoryLockEffect()
    # core clocks at which its boards cost more than equations say: centre and width in MHz, and at
    # the centre the logarithms of power and of time over those
    bands: tuple[tuple[float, float, float, float], ...] = ()
    cap_fading: Fading = SIMULATED  # of the power loop of its boards
    smooth: bool = False  # whether its boards have no more than equations do

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a GPU needs a name")
        constants = self.constants
        for table in (self.core_mhz, self.mem_mhz, constants.mem_points_mhz):
            if not table or list(table) != sorted(set(table)) or table[0] <= 0:
                raise ValueError("clock tables must be positive, distinct and ascending")
        points = constants.mem_points_mhz, constants.mem_points_w, constants.mem_points_efficiency
        if len({*map(len, points)}) > 1:
            raise ValueError("every memory point needs a clock, a power and an efficiency")
        default_w, least_w, most_w = self.limit_w
        if not 0 < least_w <= default_w <= most_w:
            raise ValueError(f"a default power limit lies between least and most: {self.limit_w}")
        if not 0 <= self.cap_margin_w < least_w:
            raise ValueError(f"a margin of {self.cap_margin_w} W is no part of {least_w} W")
        of_kernels = (own.constants for own in self.own)
        for each in (constants, self.throughput, self.switching, *of_kernels):
            if each is not None:
                _check_numbers(each)
        if self.peak_w is not None and not self.peak_w > most_w:
            greatest = f"the greatest power limit, {most_w} W"
            raise ValueError(f"a peak of {self.peak_w} W is below {greatest}")

    def kernel(self, kernel: Kernel) -> KernelConstants:
        """Return a kernel's constants: those of the sweep if it is in it, else from its work.

        Raises:
            UsageError: The kernel is unknown and does not say what it does.
        """
        for own in self.own:
            if own.kernel.name == kernel.name:
                return own.constants
        if kernel.kind is Kind.COLLECTIVE and kernel.bytes_moved is not None:
            return link_of(self.name).constants(
                kernel,
                self.constants,
                self.throughput,
                highest_mhz=(self.core_mhz[-1], self.mem_mhz[-1]),
                limit_w=self.limit_w[0],
            )
        if self.throughput is None or kernel.flops is None or kernel.bytes_moved is None:
            raise UsageError(
                f"cannot simulate {kernel.name!r} on {self.name}: what it costs is unknown",
                hint="simulate a step made by `underclock trace gpt3-xl`, or the GPU's own kernels",
            )
        return self.throughput.kernel(
            flops=kernel.flops, bytes_moved=kernel.bytes_moved, tensor=kernel.kind is Kind.GEMM
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBoard:
    """A board that differs from its model by what boards may, fitted to what it showed."""

    constants: dict[str, float | tuple[float, ...]]  # of `GpuConstants`, those that differ
    cap_margin_w: float
    memory_lock: MemoryLockEffect
    calibration: Calibration


def model_names() -> tuple[str, ...]:
    """Return every ``NAME`` of ``sim:NAME``."""
    return _NAMES


def board_names() -> tuple[str, ...]:
    """Return every board that has a name of its own, as ``NAME#BOARD``."""
    return _BOARDS


def gpu_model(name: str) -> GpuModel:
    """Return a model by short name, or from a file that ``studies/calibrate.py`` wrote.

    With ``#smooth`` after it, its boards have no more than equations do.

    Raises:
        UsageError: No such model; another GPU's constants would be worse than none.
        DataError: The file cannot be read as a model.
    """
    files = resources.files("underclock.gpus") / "data"
    if name in _BOARDS:
        body = (files / f"{name.replace('#', '_')}.json").read_bytes()
        board = msgspec.json.decode(body, type=NamedBoard)
        model = gpu_model(name.partition("#")[0])
        return dataclasses.replace(
            model,
            constants=dataclasses.replace(model.constants, **board.constants),  # type: ignore[arg-type]
            cap_margin_w=board.cap_margin_w,
            smooth=True,
            memory_lock=board.memory_lock,
            calibration=board.calibration,
        )
    if name.endswith(SMOOTH):
        return dataclasses.replace(gpu_model(name.removesuffix(SMOOTH)), smooth=True)
    if not name.endswith(".json"):
        if name not in _NAMES:
            near = any(name in each or each in name for each in _NAMES)  # else it is another GPU
            hint = name_hint(name if near else "", _NAMES)
            raise UsageError(f"no simulated GPU is called {name!r}", hint=hint)
        return decode((files / f"{name}.json").read_bytes(), name)
    try:
        return decode(Path(name).read_bytes(), name)
    except OSError as exc:
        raise DataError(
            f"cannot read {name}: {exc.strerror}", hint="`python studies/calibrate.py` makes one"
        ) from exc


@functools.cache
def name_of_model(gpu: str) -> str | None:
    """Return which ``NAME`` of ``sim:NAME`` a GPU is, by what its driver calls it; none if none."""
    models = {gpu_model(known).name.removeprefix("NVIDIA "): known for known in _NAMES}
    own = gpu.removeprefix("NVIDIA ")
    return next((known for name, known in models.items() if name.endswith(own)), None)


def encode(model: GpuModel) -> str:
    """Return a model as JSON, numbers to six digits: a sweep is no more precise."""
    rounded = json.loads(
        msgspec.json.encode(model), parse_float=lambda text: float(f"{float(text):.6g}")
    )
    return msgspec.json.format(msgspec.json.encode(rounded), indent=1).decode() + "\n"


def decode(body: bytes, where: str) -> GpuModel:
    """Read a model from JSON; ``where`` names its origin in errors.

    Raises:
        DataError: It is damaged, newer, or something else.
    """
    try:
        schema = msgspec.json.decode(body, type=dict[str, object]).get("schema", 0)
        if isinstance(schema, int) and schema > 0:
            check_schema(where, "GPU model", schema, "`python studies/calibrate.py` makes it")
        model = msgspec.json.decode(body, type=GpuModel)
        _check_names(msgspec.json.decode(body), msgspec.to_builtins(model))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise DataError(
            f"{where} is not a readable GPU model: {exc}",
            hint="`python studies/calibrate.py` makes it",
        ) from exc
    return model


def _check_names(given: Any, known: Any) -> None:  # noqa: ANN401
    if isinstance(given, dict):
        if unknown := given.keys() - known.keys():
            raise msgspec.ValidationError(f"no model has {min(unknown)!r}")
        given, known = given.values(), [known[name] for name in given]
    if not isinstance(given, str | int | float | None):
        list(map(_check_names, given, known))


def _check_numbers(constants: GpuConstants | KernelConstants | Throughput | SwitchingModel) -> None:
    """Reject constants that no GPU has: a negative power would have its counter run backwards."""
    for name, value in dataclasses.asdict(constants).items():
        numbers = value if isinstance(value, tuple) else (value,)
        for number in (each for each in numbers if isinstance(each, int | float)):
            if not abs(number) < _GREATEST or (number < 0 and name not in _ANY_SIGN):
                raise ValueError(f"{name} must be finite and not negative, got {number}")
            if number == 0 and name in _POSITIVE:
                raise ValueError(f"{name} must be positive, got {number}")
    if isinstance(constants, KernelConstants) and not any(getattr(constants, n) for n in _CYCLES):
        raise ValueError("a kernel needs cycles, and none of them negative")


_BEGINS_S, _NVLINK_SEND_S, _PCIE_SEND_S = 8.4e-6, 3.4e-6, 5.7e-6
_REACHED = 0.58
# Of two H200 (700 W) at 1980 MHz: 148 W waiting in a collective where idling draws 124 W, and 288
# to 327 W in large ones: what waiting and copying do not explain is the link's. Of every GPU.
_WAITING, _SENT_BYTE_J, _SHOWN = 24 / 700, 0.4e-9, 1 / 4


@dataclass(frozen=True, slots=True)
class Link:
    """A GPU's link to its peers."""

    name: str  # as people call it
    gb_per_s: float  # of one direction
    is_known: bool = True  # else it is the usual one

    def taken_s(self, kernel: Kernel) -> float:
        """Return how long a collective takes; one that does not say of how many GPUs, of two."""
        of = re.search(r"^(\d+)x\[| among (\d+) ranks", kernel.shape)
        sends = (int(of[1] or of[2]) if of else 2) - 1
        if re.search("all.?reduce", kernel.name):
            sends *= 2
        send_s = _NVLINK_SEND_S if self.name.startswith("NVLink") else _PCIE_SEND_S
        moving_s = (kernel.bytes_moved or 0.0) / (_REACHED * self.gb_per_s * 1e9)
        return _BEGINS_S + sends * send_s + moving_s

    def constants(
        self,
        kernel: Kernel,
        gpu: GpuConstants,
        throughput: Throughput | None,
        *,
        highest_mhz: tuple[int, int],
        limit_w: float,
    ) -> KernelConstants:
        """Return what is assumed of a collective: at the highest clocks, its link's time.

        What it sends it reads from memory, and as much comes in. Most of that hides behind the
        link; the rest goes with the clocks.

        Args:
            throughput: ``None`` where it is not known: then nothing goes with the clocks.
        """
        core_mhz, mem_mhz = map(float, highest_mhz)
        taken_s, sent = self.taken_s(kernel), kernel.bytes_moved or 0.0
        copying, shown_s = KernelConstants(fixed_s=taken_s), 0.0
        if throughput is not None:
            copying = throughput.kernel(flops=0.0, bytes_moved=2.0 * sent, tensor=False)
            copying = dataclasses.replace(
                copying,
                core_mcycles=_SHOWN * copying.core_mcycles,
                dram_mcycles=_SHOWN * copying.dram_mcycles,
                xbar_mcycles=0.0,
                fixed_s=0.0,
                serial=True,
            )
            shown_s = float(duration_s(gpu, copying, core_mhz, mem_mhz))
        waiting_j = _WAITING * limit_w * taken_s
        return dataclasses.replace(
            copying,
            fixed_s=max(taken_s - shown_s, 0.0),
            work_j_per_v2=copying.work_j_per_v2 + waiting_j / voltage_v(gpu, core_mhz) ** 2,
            dram_j=copying.dram_j + _SENT_BYTE_J * sent,
        )

    def __str__(self) -> str:
        unknown = "" if self.is_known else ", as nothing is known of this GPU's link"
        return (
            "times and powers of collectives are assumed, not measured: a ring over "
            f"{self.name} at {_REACHED * self.gb_per_s:.3g} GB/s{unknown}"
        )


_LINKS = {  # words of a GPU's name; the first that fits
    r"PCIe.*(H100|H200)|(H100|H200).*(PCIe|NVL)|RTX 50\d\d|RTX PRO": Link("PCIe 5.0", 63.0),
    r"A100.*PCIe|A[346]0\b|A\d000\b|RTX [34]0\d\d|\bL40?S?\b": Link("PCIe 4.0", 31.5),
    r"V100.*PCIe|TITAN|RTX 20\d\d|GTX 10\d\d|\bT4\b": Link("PCIe 3.0", 15.8),
    r"\bG?B[123]00": Link("NVLink 5", 900.0),
    r"\b(G?H[128]00|H20)": Link("NVLink 4", 450.0),
    r"\bA[18]00": Link("NVLink 3", 300.0),
    r"\bV100": Link("NVLink 2", 150.0),
}


def link_of(model: str) -> Link:
    """Return the link of a GPU model, by its name; the usual one where it is not known."""
    return next(
        (link for words, link in _LINKS.items() if re.search(words, model, re.IGNORECASE)),
        Link("PCIe 4.0", 31.5, is_known=False),
    )
