"""Samples as runs of rows: which of them are odd, and how far each may be off.

Shape letters: N samples, C rows (a kernel at a setting); a leading 2 is time and energy.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.statistics.repeats import Runs, Weighed, weighed
from underclock.records import Clocks, SampleSet, Window

_ON_A_LINE, _BESIDE = 5, 4  # rows at one memory clock that tell of one among them, and beside it
_FAR = math.log(1.3)  # what no bend of a curve does between clocks side by side
_TIMES_USUAL = 8.0  # and so many times what the best quarter of rows of the line are off


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRuns:
    """Runs of a table, by the places of its rows.

    Attributes:
        kernel: Which kernel each row is of. Shape (C,).
        setting: Which of the settings. Shape (C,).
        mem_mhz: Memory clock of each row, 0 where it was left to the driver. Shape (C,).
        quantities: Logarithms of time and energy.
    """

    kernel: Ints
    setting: Ints
    mem_mhz: Floats
    quantities: tuple[Runs, Runs]


def runs_of(
    samples: Sequence[Window], names: dict[str, int], settings: tuple[Clocks, ...]
) -> TableRuns:
    """Return the runs of a table's rows; ``names`` give kernels their numbers."""
    columns = {clocks: s for s, clocks in enumerate(settings)}
    places = np.array([names[s.kernel] * len(settings) + columns[s.asked] for s in samples])
    rows, row = np.unique(places, return_inverse=True)
    kernel, setting = np.divmod(rows, len(settings))
    log_mhz = np.array([math.log(c.core_mhz) if c.core_mhz else math.nan for c in settings])
    mem_mhz = np.array([float(c.mem_mhz or 0) for c in settings])
    values = np.log([[s.time_s for s in samples], [s.energy_j for s in samples]])
    time, energy = (
        Runs(log=each, row=row, kernel=kernel, log_mhz=log_mhz[setting]) for each in values
    )
    return TableRuns(
        kernel=kernel, setting=setting, mem_mhz=mem_mhz[setting], quantities=(time, energy)
    )


def sample_weights(sample_set: SampleSet) -> Floats:
    """Return how much each sample counts in time and energy: 1, and less where it is an odd repeat.

    Returns:
        Shape (2, N).
    """
    repeated = _repeated(sample_set.samples)
    weights = np.ones((2, len(sample_set.samples)))
    if len(repeated):
        for c, each in enumerate(_weighed_repeats(sample_set, repeated)):
            weights[c, repeated] = np.where(each.odd, each.weight, 1.0)
    return weights


def odd_repeats(sample_set: SampleSet) -> tuple[str, ...]:
    """Say how many repeats are odd, and which is farthest off; nothing where none are."""
    repeated = _repeated(sample_set.samples)
    if not len(repeated):
        return ()
    both = _weighed_repeats(sample_set, repeated)
    odd = np.any([each.odd for each in both], axis=0)
    if not odd.any():
        return ()
    off = np.array([np.where(each.odd, each.off, 0.0) for each in both])
    c, worst = np.unravel_index(np.abs(off).argmax(), off.shape)
    sample = sample_set.samples[repeated[worst]]
    what = ("time", "energy")[c]
    many = int(odd.sum())
    words = (
        f"{many} of {len(repeated)} repeats {'is' if many == 1 else 'are'} odd, most of all "
        f"{sample.kernel!r} at {sample.asked}: {math.expm1(off[c, worst]):+.0%} {what} against the "
        "mean of its row. They hardly count; where a plan hangs on such a row, measure it again"
    )
    return (words,)


def _repeated(samples: tuple[Window, ...]) -> Ints:
    """Return which samples are of a row that was run more than once."""
    taken = Counter((sample.kernel, sample.asked) for sample in samples)
    many = [i for i, sample in enumerate(samples) if taken[sample.kernel, sample.asked] > 1]
    return np.array(many, dtype=np.int64)


def _weighed_repeats(sample_set: SampleSet, repeated: Ints) -> list[Weighed]:
    """Return what repeats say of time and energy; rows run once do not matter to it."""
    samples = [sample_set.samples[i] for i in repeated.tolist()]
    settings = tuple(dict.fromkeys(sample.asked for sample in samples))
    names = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    return [weighed(runs) for runs in runs_of(samples, names, settings).quantities]


def odd_rows(sample_set: SampleSet) -> tuple[str, ...]:
    """Name rows that are far off what rows at the clocks beside them say; nothing where none are.

    Where rows are not repeated, nothing else tells a slip of a unit or a run that failed. Beside a
    row are the four next core clocks, at the same memory clock.
    """
    lines: dict[tuple[str, int | None], dict[int, list[Window]]] = {}
    for sample in sample_set.samples:
        if sample.asked.core_mhz is not None:
            line = lines.setdefault((sample.kernel, sample.asked.mem_mhz), {})
            line.setdefault(sample.asked.core_mhz, []).append(sample)
    alike: dict[tuple[int, ...], list[list[list[Window]]]] = {}
    for line in lines.values():
        core_mhz = tuple(sorted(line))
        alike.setdefault(core_mhz, []).append([line[mhz] for mhz in core_mhz])
    found: list[tuple[float, str, Window]] = []
    for core_mhz, rows in alike.items():
        for what, unit in (("time", "time_s"), ("energy", "energy_j")):
            means = [[sum(getattr(s, unit) for s in r) / len(r) for r in each] for each in rows]
            for line_, r, by in _off_lines(np.log(core_mhz), np.log(means)):
                found.append((by, what, rows[line_][r][0]))
    if not found:
        return ()
    off_by, what, sample = max(found, key=lambda each: abs(each[0]))
    words = (
        f"{len(found)} {'row is' if len(found) == 1 else 'rows are'} far off what rows at clocks "
        f"beside say, most of all {sample.kernel!r} at {sample.asked}: {what} is "
        f"{math.exp(off_by):.3g} times that. Check units there, or measure it again, before "
        "believing a plan that hangs on it"
    )
    return (words,)


def _off_lines(log_mhz: Floats, values: Floats) -> list[tuple[int, int, float]]:
    """Return which rows of which lines are far off those beside them, and by how much.

    One that is makes those beside it look odd, so they are judged without it.
    """
    if len(log_mhz) < _ON_A_LINE:
        return []
    place = np.arange(len(log_mhz))
    near = np.argsort(np.abs(place - place[:, None]), axis=1, kind="stable")[:, 1 : _BESIDE + 1]
    a, b = (near[:, each] for each in np.triu_indices(_BESIDE, 1))
    part = (log_mhz[:, None] - log_mhz[a]) / (log_mhz[b] - log_mhz[a])
    said = values[:, a] + (values[:, b] - values[:, a]) * part
    off = values - np.median(said, axis=2)
    # At an end what rows beside say is far away: curves may bend meanwhile.
    beyond = np.zeros(len(log_mhz))
    beyond[[0, -1]] = np.diff(log_mhz)[[0, -1]]
    usual = _TIMES_USUAL * np.quantile(np.abs(off), 0.25, axis=1, keepdims=True)
    far = np.abs(off) - np.maximum(_FAR + beyond, usual)
    found = []
    for line in np.flatnonzero(far.max(axis=1) > 0).tolist():
        worst = int(far[line].argmax())
        found.append((line, worst, float(off[line, worst])))
        rest = np.delete(place, worst)
        others = _off_lines(log_mhz[rest], values[line : line + 1, rest])
        found += [(line, int(rest[r]), by) for _, r, by in others]
    return found
