"""Axes: from values to pixels, and the round numbers that stand beside them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

MINUS = "\N{MINUS SIGN}"
_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_PAD = 0.06  # of the span, so that no point lies on the frame
_ROW_PAD = 0.6  # of a row, beside the first and the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A place on an axis and what is written there."""

    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A linear axis.

    Attributes:
        low: Value at ``start_px``.
        high: Value at ``end_px``.
        start_px: Where it starts; above ``end_px`` for an axis that points up.
        end_px: Where it ends.
        ticks: What is written beside it.
    """

    low: float
    high: float
    start_px: float
    end_px: float
    ticks: tuple[Tick, ...]

    def px(self, value: float) -> float:
        """Return where a value lies."""
        part = (value - self.low) / (self.high - self.low)
        return self.start_px + part * (self.end_px - self.start_px)


def padded(values: Sequence[float]) -> tuple[float, float]:
    """Return limits around all values; around a single one, limits that still differ."""
    low, high = min(values), max(values)
    pad = _PAD * (high - low) or 0.5 * abs(low) or 1.0
    return low - pad, high + pad


def round_ticks(low: float, high: float, most: int, *, signed: bool) -> tuple[Tick, ...]:
    """Return round numbers between two limits, all with the same number of decimals.

    Args:
        low: Below ``high``.
        high: Above ``low``.
        most: How many at most; at least 2.
        signed: Whether positive numbers get a plus sign.
    """
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in _ROUND if factor * power >= least * (1 - 1e-9))
    decimals = _decimals(step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(
        Tick(value=n * step, text=_number(n * step, decimals, signed=signed))
        for n in range(first, last + 1)
    )


def word_ticks(words: Sequence[str]) -> tuple[Tick, ...]:
    """Return words at 0, 1, 2, …."""
    return tuple(Tick(value=float(place), text=word) for place, word in enumerate(words))


def word_limits(words: Sequence[str]) -> tuple[float, float]:
    """Return the limits of an axis of words."""
    return -_ROW_PAD, len(words) - 1 + _ROW_PAD


def _decimals(step: float) -> int:
    """Return how many decimals tell multiples of a step apart."""
    return next((n for n in range(12) if math.isclose(round(step, n), step, rel_tol=1e-9)), 12)


def _number(value: float, decimals: int, *, signed: bool) -> str:
    if round(value, decimals) == 0.0:
        return "0"
    return f"{value:{'+' if signed else ''}.{decimals}f}".replace("-", MINUS)
