"""What every record rests on: schema numbers, evidence, clocks, checks, and how records look."""

import html
import importlib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from underclock.errors import DataError, NotSupportedError

SCHEMAS: Final = {
    "step": 6,
    "samples": 9,
    "merged samples": 2,
    "plan": 14,
    "validation": 5,
    "latencies": 4,
    "driver moves": 1,
    "job": 2,
    "job plan": 2,
    "serving plan": 1,
    "GPU model": 1,
}


def check_schema(where: object, kind: str, schema: int, remake: str) -> None:
    """Refuse a file of another schema; ``remake`` is a hint at what makes such a file anew.

    Raises:
        DataError: The file was written by an older or a newer version.
    """
    current = SCHEMAS[kind]
    if schema == current:
        return
    age, hint = ("a newer", "upgrade underclock") if schema > current else ("an older", remake)
    raise DataError(
        f"{where} was written by {age} underclock: it has schema {schema}, this version reads "
        f"schema {current}",
        hint=hint,
    )


LEAST_MHZ, GREATEST_MHZ = 10, 20_000  # no GPU has had a clock outside; kHz and GHz are
COLDEST_C, HOTTEST_C = -60, 200  # kelvin and millidegrees are outside
LEAST_W, GREATEST_W = 0.1, 20_000.0  # asleep, and more than a rack of GPUs may draw
_OVER_LIMIT = 2.0  # power peaks above a board's limit for milliseconds, and to less than this
_TICK_S = 0.2  # an energy counter climbs in steps of 0.1 s, and is read some time after one
ROUNDING = 5e-5  # of a number worked out from shown ones: half of a per cent's last digit shown


Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Change = Annotated[float, msgspec.Meta(gt=-1)]
"""A fraction by which something changes: -1 would be all of it."""
Budget = Annotated[float, msgspec.Meta(gt=-1, lt=1)]
"""A time budget as a fraction above auto."""
Mhz = Annotated[int, msgspec.Meta(ge=LEAST_MHZ, le=GREATEST_MHZ)]
Celsius = Annotated[float, msgspec.Meta(ge=COLDEST_C, le=HOTTEST_C)]
Number = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]


def number_found(body: bytes, words: str) -> str:
    """Say which number stands where an error names a bound that it is beyond."""
    match = re.search(r"([<>]=?) (\S+) - at `\$(.*)`$", words)
    if match is None:
        return ""
    compare = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}[match[1]]
    found: list[Any] = [msgspec.json.decode(body)]
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", match[3]):
        if name:
            found = [each[name] for each in found if name in each]
        elif index == "...":  # any of a dictionary's values
            found = [one for each in found if isinstance(each, dict) for one in each.values()]
        else:
            found = [each[int(index)] for each in found if int(index) < len(each)]
    numbers = [each for each in found if isinstance(each, int | float)]
    beyond = next((each for each in numbers if not compare(each, float(match[2]))), None)
    return "" if beyond is None else f", which is {beyond}"


class Evidence(StrEnum):
    """Where a number comes from; a number never travels without it."""

    MEASURED = "measured"  # on this GPU, by us
    REPLAYED = "replayed"  # from a measured table
    SIMULATED = "simulated"  # from a model of a GPU


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every record: immutable, unknown fields refused.

    Frozen and keyword-only are said again at each class: msgspec does not inherit the latter, nor
    type checkers the former.
    """

    def __repr__(self) -> str:
        """Write the fields that say something: what is long as how many there are."""
        names, defaults = self.__struct_fields__, self.__struct_defaults__
        required = len(names) - len(defaults)
        given = []
        for place, name in enumerate(names):
            value = getattr(self, name)
            if name != "schema" and (place < required or value != defaults[place - required]):
                given.append(f"{name}={_written(value)}")
        return f"{type(self).__name__}({_cut(', '.join(given), _MOST_RECORD)})"


def _check(
    record: Record, names: Iterable[str], possible: Callable[[float], bool], words: str
) -> None:
    """Reject values that cannot be; ``None`` means unknown, or auto, and passes."""
    for name in names:
        value = getattr(record, name)
        if value is not None and not possible(value):
            raise ValueError(f"{name} must be {words}, got {value}")


def check_positive(record: Record, *names: str) -> None:
    """Reject zero, negative and non-finite quantities; ``None`` passes."""
    _check(record, names, lambda value: 0 < value < math.inf, "positive and finite")


def check_mhz(record: Record, *names: str) -> None:
    """Reject clocks that no GPU has had; ``None`` is auto and passes."""
    words = f"from {LEAST_MHZ} to {GREATEST_MHZ} MHz"
    _check(record, names, lambda mhz: LEAST_MHZ <= mhz <= GREATEST_MHZ, words)


def check_not_negative(record: Record, *names: str) -> None:
    """Reject negative and non-finite quantities; ``None`` passes."""
    _check(record, names, lambda value: 0 <= value < math.inf, "finite and not negative")


def check_interval(record: Record, name: str, value: float | None = None) -> None:
    """Reject an interval that does not ascend, or hold the value that it is of; ``None`` passes."""
    interval = getattr(record, name)
    if interval is None:
        return
    low, high = interval
    if not -math.inf < low <= high < math.inf:
        raise ValueError(f"{name} must be finite and ascend, got {low} to {high}")
    if value is not None and not low - ROUNDING <= value <= high + ROUNDING:
        raise ValueError(f"{name} is {low} to {high} and does not hold {value}, which it is of")


def check_agrees(what: str, stated: float, worked_out: float) -> None:
    """Reject a number that contradicts other numbers of its record."""
    if not abs(stated - worked_out) <= ROUNDING * max(1.0, abs(worked_out)):
        raise ValueError(f"{what} says {stated}, and what it rests on makes {worked_out}")


def can_draw(power_w: float, limit_w: float | None = None) -> bool:
    """Whether a GPU can draw a power, in W: from 0.1 W to 20 kW, and under twice its limit."""
    return LEAST_W <= power_w <= min(GREATEST_W, _OVER_LIMIT * (limit_w or math.inf))


def can_climb(energy_j: float, over_s: float, limit_w: float | None = None) -> bool:
    """Whether an energy counter can climb by so many joules in so many seconds.

    Args:
        limit_w: The board's power limit; ``None`` where that is not known.
    """
    most_w = min(GREATEST_W, _OVER_LIMIT * (limit_w or math.inf))
    return 0.0 <= energy_j <= most_w * (over_s + _TICK_S)


def can_be_celsius(celsius: float) -> bool:
    """Whether a GPU works at a temperature, in °C."""
    return COLDEST_C <= celsius <= HOTTEST_C


class Clocks(Record, frozen=True, kw_only=True):
    """Clocks to hold on one GPU; ``None`` leaves that domain to the driver (auto)."""

    core_mhz: Mhz | None = None
    mem_mhz: Mhz | None = None

    @property
    def is_auto(self) -> bool:
        """Whether both domains are left to the driver."""
        return self.core_mhz is None and self.mem_mhz is None

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key from slow to fast; auto counts as faster than any number."""
        mem, core = (math.inf if mhz is None else mhz for mhz in (self.mem_mhz, self.core_mhz))
        return mem, core

    def __str__(self) -> str:
        both = (self.core_mhz, self.mem_mhz)
        return "core {}, memory {}".format(*("auto" if f is None else f"{f} MHz" for f in both))


AUTO = Clocks()

_FEW = 3  # items of a collection that are written out; of more the number
_MOST_TEXT, _MOST_RECORD = 80, 600  # characters: a record fits a screen, whatever it holds


def _written(value: object) -> str:
    if isinstance(value, tuple | list | dict | frozenset) and len(value) > _FEW:
        return f"<{len(value)}>"
    return _cut("".join(c for c in repr(value) if c.isprintable()), _MOST_TEXT)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


class ShownRecord(Record, frozen=True):
    """A record of a workload on a GPU that shows itself in a line, and as a table in notebooks."""

    def __repr__(self) -> str:
        facts = ", ".join(f"{name} {fact}" for name, fact in self._facts)
        text = f"<{self._heading}: {facts}>"
        return "".join(c for c in text if c.isprintable())  # what would move a terminal's cursor

    def _repr_html_(self) -> str:
        facts = ((html.escape(name), html.escape(fact)) for name, fact in self._facts)
        rows = "".join(f"<tr><th>{name}</th><td>{fact}</td></tr>" for name, fact in facts)
        caption = f"<caption>{html.escape(self._heading)}</caption>"
        return f"<table>{caption}<tbody>{rows}</tbody></table>"

    @property
    def _heading(self) -> str:
        this: Any = self
        return f"{type(self).__name__} of {this.workload} on {this.gpu.name}, {this.evidence}"

    @property
    def _facts(self) -> Iterable[tuple[str, str]]:
        return ()


def as_frame(rows: Iterable[Mapping[str, object]]) -> Any:  # noqa: ANN401 - pandas is not needed
    """Return rows as a pandas DataFrame; `NotSupportedError`: pandas is not installed."""
    return installed("pandas", "a DataFrame").DataFrame(list(rows))


def installed(module: str, what: str) -> Any:  # noqa: ANN401 - of a library that is not needed
    """Return a module that something needs; `NotSupportedError`: it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        name = module.partition(".")[0]
        words = f"{what} needs {name}, which is not installed"
        raise NotSupportedError(words, hint=f"pip install {name}") from exc
