"""One simulated GPU model: clock tables, constants, kernels of its own, and how far to trust it.

`specs` holds what is published of each GPU; `data/` holds the same with constants fitted to a
measured sweep, one JSON file a GPU, written by ``make calibrate``. A user's calibration is a file
of the same form.
"""

import dataclasses
from dataclasses import dataclass

import msgspec

from underclock.errors import DataError, UsageError
from underclock.gpus.sensors import Sensors
from underclock.gpus.switching import SwitchingModel
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.physics.work import Throughput
from underclock.records import SCHEMAS, Kernel, Kind, check_schema
from underclock.records.latencies import Domain

UNCALIBRATED = "uncalibrated"
_GREATEST = 1e30  # of a constant: what is computed from a few of them stays finite


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

    source: str = UNCALIBRATED
    """Table they were fitted to, or why they were not."""
    rows: int = 0
    """Rows of the table."""
    date: str = ""
    """When, as YYYY-MM-DD."""
    fit: Accuracy | None = None
    """On the table itself."""
    held_out: Accuracy | None = None
    """On kernels that took no part in the shared constants, from four of their rows."""
    note: str = ""
    """What else went in."""

    def __str__(self) -> str:
        parts = [self.source]
        if self.rows:
            parts = [f"fitted to {self.rows} rows of {self.source} on {self.date}"]
        if self.fit:
            parts.append(f"mean error {self.fit}")
        if self.held_out:
            parts.append(f"on held-out kernels {self.held_out}")
        if self.note:
            parts.append(self.note)
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnKernel:
    """A kernel that a sweep measured, with the constants that explain it."""

    kernel: Kernel
    constants: KernelConstants


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One GPU model."""

    schema: int = SCHEMAS["GPU model"]
    name: str
    """As the driver gives it."""
    driver: str
    """Driver version the simulation answers with."""
    core_mhz: tuple[int, ...]
    """Core clocks of the table, ascending."""
    mem_mhz: tuple[int, ...]
    """Memory clocks of the table, ascending."""
    low_mem_core_mhz: int | None = None
    """Greatest core clock at the least memory clock; above it the memory runs at its second."""
    memory_lockable: bool = True
    """Whether the driver takes memory locks."""
    limit_w: tuple[float, float, float]
    """Power limit by default; the least and the greatest that may be set."""
    cap_margin_w: float = 2.0
    """The power loop settles this far under the limit."""
    peak_w: float | None = None
    """No kernel draws more, however low the mean: what would runs slower than the clock that is
    read. ``None`` where no such peak was seen."""
    calibration: Calibration = Calibration()
    constants: GpuConstants
    throughput: Throughput | None = None
    """For kernels known by their work; ``None`` where only its own kernels can be run."""
    own: tuple[OwnKernel, ...] = ()
    """Kernels of the sweep it was fitted to."""
    switching: SwitchingModel | None = None
    """What a change of clocks takes; ``None`` for the defaults."""
    sensors: Sensors | None = None
    """What it measures with; ``None`` for what its board has."""
    counters: bool | None = None
    """Whether it counts how busy its parts are (GPM); ``None`` for whether its board does."""
    p2_mem_mhz: int | None = None
    """Memory clock to which computing demotes it; ``None`` where it stays at its highest."""
    ignored_locks: tuple[Domain, ...] = ()
    """Clocks whose locks the driver accepts and the GPU does not follow."""

    def __post_init__(self) -> None:
        """Reject tables no driver has."""
        if not self.name:
            raise ValueError("a GPU needs a name")
        tables = (self.core_mhz, self.mem_mhz, self.constants.mem_points_mhz)
        for table in tables:
            if not table or list(table) != sorted(set(table)) or table[0] <= 0:
                raise ValueError("clock tables must be positive, distinct and ascending")
        default_w, least_w, most_w = self.limit_w
        if not 0 < least_w <= default_w <= most_w:
            raise ValueError(f"a default power limit lies between least and most: {self.limit_w}")
        if not 0 <= self.cap_margin_w < least_w:
            raise ValueError(f"a margin of {self.cap_margin_w} W is no part of {least_w} W")
        _check_numbers(self.constants, may_be_negative=("ambient_c", "boost_knee_c"))
        for each in (self.throughput, self.switching, *(own.constants for own in self.own)):
            if each is not None:
                _check_numbers(each)
        if self.peak_w is not None and not self.peak_w > self.limit_w[2]:
            raise ValueError(
                f"a peak of {self.peak_w} W is below the greatest power limit, {self.limit_w[2]} W"
            )

    def kernel(self, kernel: Kernel) -> KernelConstants:
        """Return a kernel's constants: those of the sweep if it is in it, else from its work.

        Raises:
            UsageError: The kernel is unknown and does not say what it does.
        """
        for own in self.own:
            if own.kernel.name == kernel.name:
                return own.constants
        if self.throughput is None or kernel.flops is None or kernel.bytes_moved is None:
            raise UsageError(
                f"cannot simulate {kernel.name!r} on {self.name}: what it costs is unknown",
                hint="simulate a step made by `underclock trace gpt3-xl`, or the GPU's own kernels",
            )
        return self.throughput.kernel(
            flops=kernel.flops, bytes_moved=kernel.bytes_moved, tensor=kernel.kind is Kind.GEMM
        )


def encode(model: GpuModel) -> str:
    """Return a model as JSON, numbers to six digits."""
    body = msgspec.json.encode(_rounded(msgspec.to_builtins(model)))
    return msgspec.json.format(body, indent=1).decode() + "\n"


def decode(body: bytes, where: str) -> GpuModel:
    """Read a model from JSON; ``where`` names its origin in errors.

    Raises:
        DataError: It is damaged, newer, or something else.
    """
    try:
        schema = msgspec.json.decode(body, type=dict[str, object]).get("schema", 0)
        if isinstance(schema, int) and schema > 0:
            check_schema(where, "GPU model", schema, "make it anew with `underclock calibrate`")
        return msgspec.json.decode(body, type=GpuModel)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise DataError(
            f"{where} is not a readable GPU model: {exc}",
            hint="make it anew with `underclock calibrate`",
        ) from exc


def _check_numbers(
    constants: GpuConstants | KernelConstants | Throughput | SwitchingModel,
    may_be_negative: tuple[str, ...] = (),
) -> None:
    """Reject constants that no GPU has: a negative power would have its counter run backwards."""
    for name, value in dataclasses.asdict(constants).items():
        for number in value if isinstance(value, tuple) else (value,):
            if not isinstance(number, int | float):
                continue
            if not abs(number) < _GREATEST or (number < 0 and name not in may_be_negative):
                raise ValueError(f"{name} must be finite and not negative, got {number}")


def _rounded(value: object) -> object:
    """Round every float in plain data: more digits than a sweep can tell are noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
