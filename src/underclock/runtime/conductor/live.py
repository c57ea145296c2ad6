"""One line about a run that goes on, for a terminal that the trainer writes to as well."""

from collections.abc import Sequence

from underclock.records.runs import Line, StepLine


def live_line(lines: Sequence[Line]) -> str:
    """Say how the last steps went; empty before there was one.

    Args:
        lines: Of the log, the last ones.
    """
    steps = [line for line in lines if isinstance(line, StepLine)]
    if not steps:
        return ""
    last, count = steps[-1], sum(step.steps for step in steps)
    time_s = sum(step.steps * step.time_s for step in steps)
    parts = [f"step {last.step + last.steps - 1}", f"{1e3 * time_s / count:.4g} ms"]
    energies = [(s.steps, s.energy_j) for s in steps if s.energy_j is not None]
    if energies:
        energy_j = sum(some * each_j for some, each_j in energies)
        parts.append(f"{energy_j / sum(some for some, _ in energies):.4g} J")
    if last.core_mhz is not None:
        parts.append(f"{last.core_mhz:.0f} MHz")
    hits = [(step.hits, step.planned) for step in steps if step.hits is not None]
    planned = sum(each for _, each in hits)
    if planned:
        parts.append(f"{sum(each for each, _ in hits) / planned:.0%} within 1 ms")
    parts.append(f"{last.arm}: {last.state}" if last.arm else last.state)
    return ", ".join(parts)
