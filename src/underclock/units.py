"""Quantities as text: parsing what a user types and writing what a user reads.

Inside the program everything is seconds, joules, watts and integer megahertz.
"""

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import SupportsFloat, TypeVar

from underclock.errors import UsageError

_E = TypeVar("_E", bound=StrEnum)


class Domain(StrEnum):
    """What a clock belongs to."""

    CORE = "core"
    MEMORY = "memory"


KWH_J = 3.6e6
_PLAIN_FRACTION = 0.2  # a bare number above this is more likely meant in per cent

_DURATION = re.compile(r"(?P<number>[0-9]*\.?[0-9]+(?:e-?[0-9]+)?)\s*(?P<unit>[a-zµ]*)")
_MHZ = re.compile(r"0*[1-9][0-9]{0,5}")  # up to a terahertz
_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}


def parse_fraction(text: str) -> float:
    """Read ``1%`` or ``0.01`` as the fraction 0.01.

    Above 20 % the percent sign is required, because a bare ``1`` is more likely 1 % than 100 %.
    `UsageError`: not a finite number with an optional percent sign, or more than 100 %.
    """
    body = text.strip()
    percent = body.endswith("%")
    number = body.removesuffix("%").strip()
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if not abs(value) < math.inf:
        raise UsageError(
            f"cannot read {text!r} as a fraction", hint="write 0.01 or 1%; 0 means not slower"
        )
    fraction = value / 100.0 if percent else value
    if not percent and abs(fraction) > _PLAIN_FRACTION:
        raise UsageError(
            f"as a fraction, {number} is {100.0 * fraction:g} %",
            hint=f"did you mean {number}%? above {_PLAIN_FRACTION:.0%} the % must be written",
        )
    if abs(fraction) > 1.0:
        raise UsageError(f"{body} is more than the whole", hint="write 1% for one in a hundred")
    return fraction


def as_fraction(value: object, what: str) -> float:
    """Return a fraction that is given as a number, or as text that `parse_fraction` reads.

    Args:
        value: A number, ``"1%"`` or ``"0.01"``.

    Raises:
        UsageError: It is neither.
    """
    if isinstance(value, str):
        return parse_fraction(value)
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        raise UsageError(f"{what} must be a fraction, got {value!r}", hint='write 0.01 or "1%"')
    return float(value)


def parse_duration(text: str) -> float:
    """Read ``25s``, ``3ms`` or ``20min``, in seconds; only 0 needs no unit.

    Raises:
        UsageError: Not a duration, or one without a unit.
    """
    body = text.strip().lower().replace("\u03bc", "µ")  # Greek mu, as many keyboards have it
    match = _DURATION.fullmatch(body)
    units = f"a number and one of {', '.join(_SECONDS)}"
    scale = _SECONDS.get(match["unit"] or "s") if match else None
    seconds = float(match["number"]) * scale if match and scale else math.inf
    if not seconds < math.inf:
        raise UsageError(f"cannot read {text!r} as a duration", hint=units)
    if match and not match["unit"] and seconds > 0:
        raise UsageError(
            f"cannot read {text!r} as a duration: it has no unit",
            hint=f"did you mean {body}ms, {body}s or {body}min? write {units}",
        )
    return seconds


def parse_mhz(text: str) -> int | None:
    """Read a clock in MHz; ``auto`` is ``None``.

    Raises:
        UsageError: Neither a positive whole number nor ``auto``.
    """
    body = text.strip().lower()
    if body == "auto":
        return None
    if not _MHZ.fullmatch(body):
        raise UsageError(f"cannot read {text!r} as a clock", hint="write whole megahertz, or auto")
    return int(body)


def format_percent(fraction: float, *, digits: int = 2) -> str:
    """Write a change with its sign, as a percentage: ``-14.60 %``."""
    return f"{round(100.0 * fraction, digits) + 0.0:+.{digits}f} %"  # + 0.0: no "-0.00"


def plain_percent(fraction: float) -> str:
    """Write a fraction in percent without sign, unit or needless digits."""
    return f"{round(100.0 * fraction, 4) + 0.0:g}"


def format_duration(seconds: float) -> str:
    """Write a duration in the largest unit that keeps it above one: ``2.3 d``, ``41 µs``."""
    units = ("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)
    unit, size = next((u for u in units if seconds >= u[1]), units[-1])
    # Three digits, but 1000 rather than 1e+03.
    return f"{float(f'{seconds / size:.3g}'):.15g} {unit}"


def format_drawn(energy_j: float | None) -> str:
    """Say what was drawn, in kWh, or that it is not known."""
    return "what it drew is not known" if energy_j is None else f"{energy_j / KWH_J:.3g} kWh drawn"


def format_mhz(mhz: int | None) -> str:
    """Write a clock in MHz, or ``auto``."""
    return "auto" if mhz is None else str(mhz)


def first_and_more(names: Sequence[str]) -> str:
    """Write the first of some names, and how many more there are: ``'a' and 2 more``."""
    return repr(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def name_hint(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant, as a sentence for a hint."""
    names = sorted(str(each) for each in known)  # of an enum, the value
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    listing = ", ".join(names)
    return f"did you mean {close[0]!r}? known: {listing}" if close else f"known: {listing}"


def member(choices: type[_E], value: str, what: str) -> _E:
    """Return the member of a closed set that a text names.

    Raises:
        UsageError: The set has no such member.
    """
    try:
        return choices(value)
    except ValueError:
        raise UsageError(f"unknown {what} {value!r}; {name_hint(str(value), choices)}") from None
