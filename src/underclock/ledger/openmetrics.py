"""Numbers as Prometheus reads them: OpenMetrics 1.0, or Prometheus' older text for a file.

Node exporter's textfile collector and ``promtool check metrics`` read the older one; a scrape asks
for OpenMetrics. They differ in how a counter's family is called, in units and in how they end.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_TOTAL = "_total"

Labels = tuple[tuple[str, str], ...]


class FamilyKind(StrEnum):
    """What a family's numbers do."""

    COUNTER = "counter"  # grow until the process ends
    GAUGE = "gauge"


@dataclass(slots=True)
class MetricFamily:
    """Numbers of one name; the name ends with the unit, and a counter's has no ``_total`` here."""

    name: str
    kind: FamilyKind
    unit: str  # empty for none
    words: str  # what it is
    values: dict[Labels, float] = field(default_factory=dict)

    def add(self, value: float, labels: Mapping[str, str]) -> None:
        """Count something."""
        key = tuple(labels.items())
        self.values[key] = self.values.get(key, 0.0) + value

    def set(self, value: float, labels: Mapping[str, str]) -> None:
        """Say what it is now."""
        self.values[tuple(labels.items())] = value


def openmetrics_text(families: Iterable[MetricFamily]) -> str:
    """Return families as OpenMetrics."""
    lines = []
    for family in families:
        if family.values:
            lines += [f"# TYPE {family.name} {family.kind}"]
            lines += [f"# UNIT {family.name} {family.unit}"] if family.unit else []
            lines += [f"# HELP {family.name} {family.words.translate(_ESCAPES)}"]
            lines += _samples(family)
    return "\n".join([*lines, "# EOF\n"])


def prometheus_text(families: Iterable[MetricFamily]) -> str:
    """Return families in Prometheus' own text format."""
    lines = []
    for family in families:
        if family.values:
            name = _sampled(family)
            words = family.words.replace("\\", r"\\").replace("\n", r"\n")
            lines += [f"# HELP {name} {words}", f"# TYPE {name} {family.kind}", *_samples(family)]
    return "".join(f"{line}\n" for line in lines)


def _sampled(family: MetricFamily) -> str:
    return family.name + (_TOTAL if family.kind is FamilyKind.COUNTER else "")


def _samples(family: MetricFamily) -> list[str]:
    """Return a line for each number."""
    lines = []
    for labels, value in family.values.items():
        inside = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels)
        braced = f"{{{inside}}}" if inside else ""
        lines.append(f"{_sampled(family)}{braced} {_number(value)}")
    return lines


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))
