"""Sample sets before they reach a fit: those of several steps as one, and no damaged ones.

Samples become runs of rows: which of them are odd, how far each may be off, and at which clocks
they ran, where those are not the clocks asked for: the power cap holds what would draw more, no
core runs above what it boosts to, and what was left to the driver runs where it was read.

Shape letters: N samples, C rows (a kernel at a setting); a leading 2 is time and energy.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.statistics.repeats import RepeatedRuns, Weighed, weighed
from underclock.core.step.power_cap import driver_says, is_power_capped
from underclock.errors import DataError
from underclock.records import ALONE, Clocks, GpuInfo, Kernel, SampleSet, Step, Window

# What no GPU, of any age, is near to; beyond it a value is damaged or in another unit.
_PLAUSIBLE_MHZ = (10.0, 20_000.0)
_PLAUSIBLE_W = (0.1, 100_000.0)


def joined_sets(sample_sets: Sequence[SampleSet]) -> SampleSet:
    """Return all samples as one sample_set; a kernel in several of them keeps one name.

    Raises:
        DataError: There are none, or they are of two GPUs, drivers, power limits or evidences.
    """
    if not sample_sets:
        raise DataError("there are no samples to fit", hint="measure first")
    first = sample_sets[0]
    for other in sample_sets[1:]:
        if other.gpu != first.gpu:
            raise DataError(
                "samples from two GPUs or drivers in one fit: "
                f"{_words(first.gpu)} and {_words(other.gpu)}",
                hint="fit the files of each by themselves; after a new driver or power limit, "
                "measure again",
            )
        if other.evidence is not first.evidence:
            raise DataError(
                f"{first.evidence} and {other.evidence} samples in one fit",
                hint="fit the files of each kind by themselves",
            )
    if len(sample_sets) == 1:
        return first
    kernels: dict[str, Kernel] = {}
    windows: list[Window] = []
    for number, sample_set in enumerate(sample_sets, 1):
        names = {}
        for kernel in sample_set.kernels:
            known = kernels.get(kernel.name)
            same = known is None or _work(known) == _work(kernel)
            names[kernel.name] = kernel.name if same else f"{kernel.name} of file {number}"
            new = msgspec.structs.replace(kernel, name=names[kernel.name])
            kernels.setdefault(new.name, new)
        # Durations inside a whole step are by its own kernels' places, of which there are many now.
        windows += [
            msgspec.structs.replace(w, kernel=names.get(w.kernel, ""))
            if w.kernel or not w.mix.launches
            else w.untimed()
            for w in sample_set.windows
            if not w.is_step or (w.mix == ALONE and w.asked.is_auto)
        ]
    return SampleSet(
        evidence=first.evidence,
        gpu=first.gpu,
        step=Step(
            name=" and ".join(dict.fromkeys(sample_set.workload for sample_set in sample_sets)),
            kernels=tuple(kernels.values()),
        ),
        windows=tuple(windows),
        settings=tuple(dict.fromkeys(s for sample_set in sample_sets for s in sample_set.settings)),
        sampled=any(sample_set.sampled for sample_set in sample_sets),
        warnings=tuple(dict.fromkeys(w for sample_set in sample_sets for w in sample_set.warnings)),
    )


def _work(kernel: Kernel) -> tuple[object, ...]:
    """Return what two kernels of one name must share to be the same."""
    identity = kernel.launch.identity if kernel.launch else None
    return kernel.kind, kernel.shape, kernel.flops, kernel.bytes_moved, identity


def _words(gpu: GpuInfo) -> str:
    limit = "unknown limit" if gpu.power_limit_w is None else f"{gpu.power_limit_w:g} W"
    return f"{gpu.name} (driver {gpu.driver or 'unknown'}, {limit})"


def check_values(sample_set: SampleSet) -> None:
    """Refuse samples that no GPU can have given.

    Raises:
        DataError: A sample is of no kernel of the step, has durations of other kernels than ran, or
            its clocks or power are out of bounds.
    """
    names = {kernel.name for kernel in sample_set.kernels}
    damaged = "the file is damaged, or of another step: measure again"
    clocks = clocks_asked(sample_set)
    for window in (*sample_set.samples, *sample_set.mixed):
        what = (repr(window.kernel) if window.kernel else "the step") + (
            " with co-load" if window.mix != ALONE else f" at {window.asked}"
        )
        if window.kernel and window.kernel not in names:
            raise DataError(f"{what} is measured, and is no kernel of the step", hint=damaged)
        wanted = (1 if window.kernel else len(names)) if window.mix.launches else 0
        if (window.kernel_s or window.mix != ALONE) and len(window.kernel_s) != wanted:
            raise DataError(
                f"{what} has {len(window.kernel_s)} durations instead of {wanted}", hint=damaged
            )
        if not _PLAUSIBLE_W[0] <= window.power_w <= _PLAUSIBLE_W[1]:
            raise DataError(
                f"{what} drew {window.power_w:.3g} W: "
                f"{window.energy_j:.3g} J in {window.time_s:.3g} s",
                hint="are times in s and energies in J?",
            )
        clocks += [window.observed] if window.observed else []
    seen_mhz = [("core", window.at_mhz) for window in sample_set.mixed]
    seen_mhz += [("core", each.core_mhz) for each in clocks if each.core_mhz is not None]
    seen_mhz += [("memory", each.mem_mhz) for each in clocks if each.mem_mhz is not None]
    for name, mhz in seen_mhz:
        if not _PLAUSIBLE_MHZ[0] <= mhz <= _PLAUSIBLE_MHZ[1]:
            raise DataError(
                f"a {name} clock of {mhz:.0f} MHz is none that a GPU has",
                hint="are clocks in MHz?",
            )


def clocks_asked(sample_set: SampleSet) -> list[Clocks]:
    """Return all clocks that were to be visited, and those that were."""
    asked = [sample.asked for sample in sample_set.samples]
    return [*sample_set.settings, *asked, *[sample.asked for sample in sample_set.mixed]]


UNKNOWN_MHZ = 1.0
"""Stands for the one memory clock of samples that do not name it."""
_PILE = 3  # kernels at the same greatest power, from which a cap is concluded


def memory_mhz(sample_set: SampleSet) -> list[float]:
    """Return the GPU's memory clocks, ascending: as asked, else as read back, else one unknown."""
    asked = {float(clocks.mem_mhz) for clocks in clocks_asked(sample_set) if clocks.mem_mhz}
    observed = [sample.observed for sample in sample_set.samples if sample.observed]
    read = {float(clocks.mem_mhz) for clocks in observed if clocks.mem_mhz}
    return sorted(asked or read or {UNKNOWN_MHZ})


def ceiling_mhz(samples: Sequence[Window]) -> float:
    """Return the least core clock a GPU boosted to away from its cap; ``inf`` if never seen."""
    seen = [
        float(s.observed.core_mhz)
        for s in samples
        if s.observed
        and s.observed.core_mhz
        and not driver_says(s.throttle_reasons)
        and (s.asked.core_mhz is None or not holds(s))
    ]
    return min(seen, default=math.inf)


def seen_cap(sample_set: SampleSet) -> tuple[float, list[bool]]:
    """Return what samples show of the power cap.

    Returns:
        The power in W that capped samples settle at, ``inf`` where none was capped; and of each
        sample whether it was.
    """
    samples = sample_set.samples
    powers = [sample.energy_j / sample.time_s for sample in samples]
    limit_w = sample_set.gpu.power_limit_w or max(powers, default=math.inf)
    capped = is_power_capped(samples, limit_w).tolist()
    if all(driver_says(sample.throttle_reasons) is None for sample in samples):
        capped = [
            yes and s.asked.core_mhz is not None for yes, s in zip(capped, samples, strict=True)
        ]
        # Where the driver was not asked, a cap shows as many kernels that draw the same at most.
        held = {sample.kernel for sample, yes in zip(samples, capped, strict=True) if yes}
        capped = capped if len(held) >= _PILE else [False] * len(powers)
    at_cap = [power_w for power_w, yes in zip(powers, capped, strict=True) if yes]
    return (float(np.median(at_cap)) if at_cap else math.inf), capped


def holds(sample: Window) -> bool:
    """Whether the core ran at what was asked, as far as anybody looked."""
    seen = sample.observed.core_mhz if sample.observed else None
    return seen is None or seen == sample.asked.core_mhz


# Two sweeps of A100s wandered by 0.8 % from run to run; that counts as so many visits of a board.
_WANDER, _AS_VISITS = 0.008, 12.0
_ON_A_LINE, _NEAR_IT = 5, 4  # rows at one memory clock that show an odd one, and next to it
_FAR = math.log(1.3)  # what no bend of a curve does between clocks side by side
_TIMES_USUAL = 8.0  # and so many times what the best quarter of rows of the line are off


def runs_of(
    samples: Sequence[Window], names: dict[str, int], settings: tuple[Clocks, ...]
) -> tuple[RepeatedRuns, RepeatedRuns]:
    """Return runs of time and of energy of a table's rows; ``names`` give kernels their numbers."""
    columns = {clocks: s for s, clocks in enumerate(settings)}
    places = np.array([names[s.kernel] * len(settings) + columns[s.asked] for s in samples])
    rows, row = np.unique(places, return_inverse=True)
    kernel, setting = np.divmod(rows, len(settings))
    log_mhz = np.array([math.log(c.core_mhz) if c.core_mhz else math.nan for c in settings])
    values = np.log([[s.time_s for s in samples], [s.energy_j for s in samples]])
    time, energy = (
        RepeatedRuns(log=each, row=row, kernel=kernel, log_mhz=log_mhz[setting]) for each in values
    )
    return time, energy


def sample_weights(sample_set: SampleSet) -> Floats:
    """Return how much each sample counts in time and energy: 1, and less where it is an odd repeat.

    Returns:
        Shape (2, N).
    """
    weights = np.ones((2, len(sample_set.samples)))
    repeated, both = _weighed_repeats(sample_set)
    for c, each in enumerate(both):
        weights[c, repeated] = np.where(each.odd, each.weight, 1.0)
    return weights


def odd_repeats(sample_set: SampleSet) -> tuple[str, ...]:
    """Say how many repeats are odd, and which is farthest off; nothing where none are."""
    repeated, both = _weighed_repeats(sample_set)
    many = int(np.any([each.odd for each in both], axis=0).sum())
    if not many:
        return ()
    off = np.array([np.where(each.odd, each.off, 0.0) for each in both])
    c, worst = np.unravel_index(np.abs(off).argmax(), off.shape)
    sample = sample_set.samples[repeated[worst]]
    words = (
        f"{many} of {len(repeated)} repeats {'is' if many == 1 else 'are'} odd, most of all "
        f"{sample.kernel!r} at {sample.asked}: {math.expm1(off[c, worst]):+.0%} "
        f"{('time', 'energy')[c]} against the mean of its row. They hardly count; where a plan "
        "hangs on such a row, measure it again"
    )
    return (words,)


def _weighed_repeats(sample_set: SampleSet) -> tuple[Ints, list[Weighed]]:
    """Return samples of rows that were run more than once, and what these say: time, energy."""
    taken = Counter((sample.kernel, sample.asked) for sample in sample_set.samples)
    many = [i for i, s in enumerate(sample_set.samples) if taken[s.kernel, s.asked] > 1]
    if not many:
        return np.zeros(0, dtype=np.int64), []
    samples = [sample_set.samples[i] for i in many]
    settings = tuple(dict.fromkeys(sample.asked for sample in samples))
    names = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    return np.array(many), [weighed(runs) for runs in runs_of(samples, names, settings)]


_WANDERS_S, _LEAST_APART = 300.0, 0.2  # within which power wanders (assumed); a bound
_PAIRED = 1000  # windows of many that are compared with one another


def looked_at_s(windows: Sequence[Window]) -> Floats:
    """Return when each window ended, as if one began where another ends. Shape (N,)."""
    return np.cumsum([window.window_s or _WANDERS_S for window in windows])


def looks_alike(at_s: Floats) -> tuple[float, float]:
    """Return how alike looks at times (N,) are in what wanders: of all pairs, and less selves."""
    at_s = at_s[:: 1 + len(at_s) // _PAIRED]
    many = len(at_s)
    if many <= 1:
        return 1.0, 1.0
    total = float(np.exp(-np.abs(at_s[:, None] - at_s) / _WANDERS_S).sum())
    return total / many**2, (total - many) / (many * (many - 1))


_ENOUGH = 3  # kernels that ran at a setting, from which on its power is known


def visited(sample_set: SampleSet, settings: Sequence[Clocks]) -> Bools:
    """Return at which settings each kernel is known: it ran there, or enough others. Shape (K, C).

    Power over clock goes by steps (an A100's by 40 % within 300 MHz), so what lies between two
    settings may be of either. Clocks that were steered are where they were, and all count.
    """
    place = {clocks: c for c, clocks in enumerate(settings)}
    index = {kernel.name: k for k, kernel in enumerate(sample_set.kernels)}
    ran = np.zeros((len(index), len(settings)), dtype=bool)
    for sample in sample_set.samples:
        c = place.get(sample.asked)
        if c is not None and holds(sample) and not driver_says(sample.throttle_reasons):
            ran[index[sample.kernel], c] = True
    if all(sample.asked.is_auto for sample in sample_set.samples):
        return np.ones_like(ran)
    whole = {window.asked for window in sample_set.locked_steps}
    ran |= np.array([clocks in whole for clocks in settings])
    known: Bools = ran | (ran.sum(axis=0) >= min(_ENOUGH, len(ran)))
    return known


def power_wander(sample_set: SampleSet, settings: Sequence[Clocks]) -> tuple[float, Floats]:
    """Return by how much power wanders, and columns of errors that makes of settings, (C, V).

    The power of a board wanders within minutes, and a visit to a setting measures many kernels: so
    repeats of theirs in another visit are off alike, as a standard deviation of log power. Nothing
    where clocks were steered: such rows have the errors of their co-load.
    """
    asked = [(sample.kernel, sample.asked) for sample in sample_set.samples]
    if all(clocks.is_auto for _, clocks in asked):
        return 0.0, np.zeros((len(settings), 0))
    log_w = np.log([sample.energy_j / sample.time_s for sample in sample_set.samples])
    row = np.unique([f"{kernel} {clocks}" for kernel, clocks in asked], return_inverse=True)[1]
    runs = np.bincount(row)[row]
    off = log_w - (np.bincount(row, log_w) / np.bincount(row))[row]
    off *= np.sqrt(runs / np.maximum(runs - 1.0, 1.0))
    visit = np.cumsum([0, *(one[1] != next_[1] for one, next_ in pairwise(asked))])
    many, sums, squares = (
        np.bincount(visit[runs > 1], of[runs > 1]) for of in (np.ones(len(off)), off, off**2)
    )
    several = many > 1
    alike = (sums**2 - squares)[several] / (many * (many - 1.0))[several]
    # Repeats a few minutes apart wander together in part, which their scatter does not show.
    at_s = looked_at_s(sample_set.samples)
    apart = 1.0 - looks_alike(at_s)[1]
    total = float(alike.sum()) / max(apart, _LEAST_APART) + _AS_VISITS * _WANDER**2
    wander = math.sqrt(max(total, 0.0) / (len(alike) + _AS_VISITS))
    # What a setting is off is the mean of its visits; those near in time are off alike.
    taken, first = np.bincount(visit), np.unique(visit, return_index=True)[1]
    at_s = np.bincount(visit, at_s) / taken
    column = {clocks: c for c, clocks in enumerate(settings)}
    place = np.array([column.get(asked[at][1], -1) for at in first.tolist()])
    there = np.unique(place[place >= 0])
    mean = (place == there[:, None]) * taken
    mean = mean / mean.sum(axis=1, keepdims=True)
    covariance = mean @ np.exp(-np.abs(at_s[:, None] - at_s) / _WANDERS_S) @ mean.T
    errors = np.zeros((len(settings), len(there)))
    errors[there] = wander * np.linalg.cholesky(covariance + 1e-9 * np.eye(len(there)))
    return wander, errors


def odd_rows(sample_set: SampleSet) -> tuple[str, ...]:
    """Name rows that are far off what rows at neighbouring clocks say; nothing where none are.

    Where rows are not repeated, nothing else shows a slip of a unit or a run that failed. Beside a
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
        f"{len(found)} {'row is' if len(found) == 1 else 'rows are'} far off what rows at "
        f"neighbouring clocks say, most of all {sample.kernel!r} at {sample.asked}: {what} is "
        f"{math.exp(off_by):.3g} times that. Check units there, or measure it again, before "
        "believing a plan that hangs on it"
    )
    return (words,)


def _off_lines(log_mhz: Floats, values: Floats) -> list[tuple[int, int, float]]:
    """Return which rows of which lines are far off their neighbours, and by how much.

    One that is makes its neighbours look odd, so they are judged without it.
    """
    if len(log_mhz) < _ON_A_LINE:
        return []
    place = np.arange(len(log_mhz))
    near = np.argsort(np.abs(place - place[:, None]), axis=1, kind="stable")[:, 1 : _NEAR_IT + 1]
    a, b = (near[:, each] for each in np.triu_indices(_NEAR_IT, 1))
    part = (log_mhz[:, None] - log_mhz[a]) / (log_mhz[b] - log_mhz[a])
    said = values[:, a] + (values[:, b] - values[:, a]) * part
    off = values - np.median(said, axis=2)
    # At an end what neighbours say is far away: curves may bend meanwhile.
    beyond = np.zeros(len(log_mhz))
    beyond[[0, -1]] = np.diff(log_mhz)[[0, -1]]
    usual = _TIMES_USUAL * np.quantile(np.abs(off), 0.25, axis=1, keepdims=True)
    far = np.abs(off) - np.maximum(_FAR + beyond, usual)
    found = []
    for line in np.flatnonzero(far.max(axis=1) > 0).tolist():
        worst = int(far[line].argmax())
        found.append((line, worst, float(off[line, worst])))
        rest = np.delete(place, worst)
        more = _off_lines(log_mhz[rest], values[line : line + 1, rest])
        found += [(line, int(rest[r]), by) for _, r, by in more]
    return found
