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
    last, count = steps[-1], len(steps)
    parts = [f"step {last.step}", f"{1e3 * sum(s.time_s for s in steps) / count:.4g} ms"]
    energies = [step.energy_j for step in steps if step.energy_j is not None]
    if energies:
        parts.append(f"{sum(energies) / len(energies):.4g} J")
    if last.core_mhz is not None:
        parts.append(f"{last.core_mhz:.0f} MHz")
    hits = [(step.hits, step.planned) for step in steps if step.hits is not None]
    planned = sum(each for _, each in hits)
    if planned:
        parts.append(f"{sum(each for each, _ in hits) / planned:.0%} within 1 ms")
    parts.append(f"{last.arm}: {last.state}" if last.arm else last.state)
    return ", ".join(parts)
