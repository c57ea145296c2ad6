"""A posterior as the GPU makes of it: power limits, measured entries, kernels inside the step.

Each returns a posterior whose columns of errors went the same way as its means: to first order for
what is expected, and draw by draw (`held`) where an error may move a kernel into the limit.

Alone, a kernel meets its own data in the cache; in the step it meets what other kernels left. One
ratio of power for all kernels is measured where the step ran at several clocks with co-load.

Shape letters: K kernels, C settings, E columns of errors; a leading 2 is time and power.
"""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.conditioning import COUPLED
from underclock.core.model.parameters import Rows
from underclock.core.model.posterior import Posterior, opposite

_SETTLES = 0.003  # by so much kernels differ in the power at which a loop settles (assumed)
_STEEPEST = 2.0  # exponent of time with power: half of the power at least follows the speed


def with_means(posterior: Posterior, log_s: Floats, log_w: Floats, repeats: Floats) -> Posterior:
    """Return a posterior in which some entries cost what was measured, as sure as their repeats.

    For entries that no row of the fit stands for: of them nothing else is known.

    Args:
        log_s: Mean measured, ``nan`` where not. Shape (K, C).
        log_w: Logarithm of the mean power in W, ``nan`` where not measured. Shape (K, C).
        repeats: How many measurements that is the mean of. Shape (K, C).
    """
    known = np.isfinite(log_s)
    if not known.any():
        return posterior
    noise = posterior.noise[:, :, None] / np.sqrt(np.maximum(repeats, 1.0))
    log = np.where(known, np.stack([log_s, log_w]), posterior.log)
    moves = np.where(known[..., None], 0.0, posterior.moves)
    draws = moves.shape[-1] - posterior.shared
    drawn = opposite(np.random.default_rng(0), draws, 2, int(known.sum()))
    moves[:, known, posterior.shared :] = noise[:, known, None] * drawn
    return dataclasses.replace(posterior, log=log, moves=moves)


def with_ratio(posterior: Posterior, ratio: float, spread: tuple[float, float]) -> Posterior:
    """Return a posterior whose kernels all draw a ratio more power.

    Args:
        spread: Standard deviations of what all take more time and draw more power by, in logs.
    """
    log, columns = posterior.log.copy(), np.zeros((*posterior.moves.shape[:3], 2))
    log[1] += math.log(ratio)
    columns[0, ..., 0], columns[1, ..., 1] = spread
    return dataclasses.replace(
        posterior,
        log=log,
        moves=np.concatenate([columns, posterior.moves], axis=-1),
        shared=posterior.shared + 2,
        parameter_moves=np.pad(posterior.parameter_moves, ((0, 0), (0, 0), (2, 0))),
        gpu_moves=np.pad(posterior.gpu_moves, ((0, 0), (2, 0))),
    )


def given_step(
    posterior: Posterior, counts: Floats, at: int, off: Floats, spread: Floats
) -> Posterior:
    """Condition what kernels share on what the step, (K,) launches of each, took at a setting.

    Args:
        off: Log time and log energy of the step over those of the sum of kernels. Shape (2,).
        spread: Standard deviations of these, what kernels are unsure of apart. Shape (2,).
    """
    costs = np.stack(posterior.costs(counts))[:, :, at]
    shares = costs / costs.sum(axis=1, keepdims=True)
    moves = np.stack([posterior.moves[0, :, at], posterior.moves[:, :, at].sum(axis=0)])
    sums = np.einsum("qk,qke->qe", shares, moves)
    shared, own = np.split(sums, [posterior.shared], axis=1)
    noise = own @ own.T + np.diag(spread**2 + np.cumsum(posterior.of_setting[:, at] ** 2))
    gain = np.linalg.solve(shared @ shared.T + noise, shared).T
    root = np.linalg.cholesky((1.0 + 1e-12) * np.eye(posterior.shared) - gain @ shared)
    here, rest = np.split(posterior.moves, [posterior.shared], axis=-1)
    moves = np.concatenate([here @ root, rest], axis=-1)
    return dataclasses.replace(posterior, log=posterior.log + here @ (gain @ off), moves=moves)


def ladders(core_mhz: Floats, mem_mhz: Floats) -> list[Ints]:
    """Return the settings of each memory clock, ascending by core clock."""
    found = []
    for memory in np.unique(mem_mhz):
        ladder = np.flatnonzero(mem_mhz == memory)
        found.append(ladder[np.argsort(core_mhz[ladder], kind="stable")])
    return found


def held(logs: Floats, core_mhz: Floats, mem_mhz: Floats, limit_w: float) -> Floats:
    """Return log time and log power under a limit: what would draw more draws that.

    Between two settings time is taken to be linear in the logarithm of power.

    Args:
        logs: Shape (..., 2, K, C).
        core_mhz: Core clock of each setting. Shape (C,).
        mem_mhz: Memory clock of each setting. Shape (C,).
    """
    if math.isinf(limit_w):
        return logs
    limit, logs = math.log(limit_w), logs.copy()
    for ladder in ladders(core_mhz, mem_mhz):
        rungs = logs[..., ladder]
        first = (rungs[..., [1], :, :] > limit).argmax(axis=-1)[..., None]
        is_held = (first > 0) & (np.arange(len(ladder)) >= first)
        low, high = (
            np.take_along_axis(rungs, np.broadcast_to(at, (*rungs.shape[:-1], 1)), -1)
            for at in (np.maximum(first - 1, 0), first)
        )
        rise = np.where(first > 0, high - low, 1.0)[..., [1], :, :]
        share = (limit - low[..., [1], :, :]) / rise
        between = low + share * (high - low)
        between[..., 1, :, :] = limit
        logs[..., ladder] = np.where(is_held, between, rungs)
    return logs


def between_rows(
    posterior: Posterior, rows: Bools, core_mhz: Floats, mem_mhz: Floats, slack: float
) -> Posterior:
    """Hold times between those of rows at neighbouring clocks, draw by draw.

    No kernel is slower at a higher clock. What moves a time moves power by half the other way.

    Args:
        rows: Which entries have a row. Shape (K, C).
        core_mhz: Core clock of each setting. Shape (C,).
        mem_mhz: Memory clock of each setting. Shape (C,).
        slack: By how much a log time may lie beyond.
    """
    shared, draws = posterior.shared, posterior.moves.shape[-1] - posterior.shared
    normal = math.sqrt(draws) * opposite(np.random.default_rng(5), draws, shared)
    log, moves = posterior.log.copy(), posterior.moves.copy()
    for ladder in ladders(core_mhz, mem_mhz):
        for k in np.flatnonzero(rows[:, ladder].any(axis=1)).tolist():
            there = np.flatnonzero(rows[k, ladder])
            held = np.flatnonzero(~rows[k, ladder])
            columns = moves[0, k, ladder]
            drawn = columns[:, :shared] @ normal + math.sqrt(draws) * columns[:, shared:]
            drawn += log[0, k, ladder, None]
            after = np.searchsorted(there, held)
            sides = np.stack([after > 0, after < len(there)])[..., None]
            at = there[np.clip([after - 1, after], 0, len(there) - 1)]
            high = np.where(sides[0], drawn[at[0]], np.inf)
            low = np.where(sides[1], drawn[at[1]], -np.inf)
            near = (sides * columns[at, :shared]).sum(axis=0) / sides.sum(axis=0)
            # Rows that contradict one another hold to what lies between them.
            low, high = np.minimum(low, high) - slack, np.maximum(low, high) + slack
            now = np.clip(drawn[held], low, high)
            by = (now - drawn[held]).mean(axis=1)
            moved = (now != drawn[held]).mean(axis=1)[:, None]
            by_all = (1.0 - moved) * columns[held, :shared] + moved * near
            of, less = ladder[held], np.array([1.0, -COUPLED])
            own = (now - (log[0, k, of] + by)[:, None] - by_all @ normal) / math.sqrt(draws)
            away = np.concatenate([by_all, own], axis=1) - columns[held]
            log[:, k, of] += np.outer(less, by)
            moves[:, k, of] += less[:, None, None] * away
    return dataclasses.replace(posterior, log=log, moves=moves)


def capped(posterior: Posterior, core_mhz: Floats, mem_mhz: Floats, limit_w: float) -> Posterior:
    """Return what kernels cost under a limit, each by itself: what would draw more draws that.

    There the limit says the power, and what the fit misses of it is made good by time.

    Args:
        core_mhz: Core clock of each setting. Shape (C,).
        mem_mhz: Memory clock of each setting. Shape (C,).
    """
    if math.isinf(limit_w):
        return posterior
    limit, settles = math.log(limit_w), np.zeros(posterior.log.shape)
    at, moves = posterior.log, posterior.moves.copy()
    for ladder in ladders(core_mhz, mem_mhz):
        above = at[1][:, ladder] > limit
        # What draws more at the slowest clock already stays as it is.
        for k in np.flatnonzero(above.any(axis=1) & ~above[:, 0]).tolist():
            first = int(above[k].argmax())
            low, high = ladder[first - 1 : first + 1].tolist()
            rise = at[1, k, high] - at[1, k, low]
            share = (limit - at[1, k, low]) / rise
            per_power = float(np.clip((at[0, k, high] - at[0, k, low]) / rise, -_STEEPEST, 0.0))
            time, power = (
                (1.0 - share) * of[k, low] + share * of[k, high] for of in posterior.moves
            )
            moves[0, k, ladder[first:]] = time - per_power * power
            moves[1, k, ladder[first:]] = 0.0
            settles[:, k, ladder[first:]] = np.array([[-per_power * _SETTLES], [_SETTLES]])
    held_at = held(at, core_mhz, mem_mhz, limit_w)
    return _with_error(dataclasses.replace(posterior, log=held_at, moves=moves), settles, seed=1)


def _with_error(posterior: Posterior, deviation: Floats, *, seed: int) -> Posterior:
    """Add an error that is a kernel's own and moves its entries together, by (2, K, C)."""
    if not deviation.any():
        return posterior
    draws = posterior.moves.shape[-1] - posterior.shared
    drawn = opposite(np.random.default_rng(seed), draws, deviation.shape[1])
    moves = posterior.moves.copy()
    for q, k in np.argwhere(deviation.any(axis=-1)).tolist():
        moves[q, k, :, posterior.shared :] += np.outer(deviation[q, k], drawn[k])
    return dataclasses.replace(posterior, moves=moves)


def with_guesses(posterior: Posterior, kernels: Ints, spread: Floats) -> Posterior:
    """Return a posterior as unsure of kernels as their power was guessed.

    Args:
        kernels: Which. Shape (U,).
        spread: Standard deviation of log power of each. Shape (U,).
    """
    guessed = np.zeros(posterior.log.shape)
    guessed[1, kernels] = spread[:, None]
    return _with_error(posterior, guessed, seed=2)


def as_at_boost(
    posterior: Posterior, log_s: Floats | None, core_mhz: Floats, at_auto: Bools, peak_w: float
) -> Posterior:
    """Return a posterior in which what a peak of power holds takes what it took at boost.

    A peak bends time before it stops it, and how much the fit expects hangs on the power that it
    expects there. From where the peak holds a kernel to boost, time follows the clock.

    Args:
        log_s: Log time in s of kernels at boost, as they ran; ``nan`` where unknown. Shape (K,);
            ``None`` where none is known.
        core_mhz: Core clock of each setting. Shape (C,).
        at_auto: Which settings have the memory clock that auto has. Shape (C,).
        peak_w: What `capped` held kernels at.
    """
    if log_s is None or math.isinf(peak_w):
        return posterior
    log, highest_mhz = posterior.log.copy(), core_mhz[at_auto].max(initial=0.0)
    moves, own = posterior.moves.copy(), np.zeros_like(log)
    for k in np.flatnonzero(np.isfinite(log_s)).tolist():
        at_peak = np.flatnonzero(at_auto & (posterior.log_w[k] == math.log(peak_w)))
        reach = core_mhz[at_peak] - core_mhz[at_peak].min(initial=highest_mhz)
        share = reach / reach.max(initial=0.0) if reach.any() else np.ones(len(at_peak))
        log[0, k, at_peak] += share * (log_s[k] - log[0, k, at_peak])
        moves[0, k, at_peak] *= (1.0 - share)[:, None]
        own[0, k, at_peak] = share * posterior.noise[0, k]
    return _with_error(dataclasses.replace(posterior, log=log, moves=moves), own, seed=3)


# By how much time and power of a kernel are off at clocks far above all its rows, and how far that
# is in the logarithm of the clock: up to 5 % of time on units of an RTX 3080 Ti.
_ABOVE, _FAR_ABOVE = 0.02, 0.3


def above_rows(posterior: Posterior, rows: Rows, core_mhz: Floats, mem_mhz: Floats) -> Posterior:
    """Return a posterior that is less sure of a kernel at clocks above all its rows.

    There cycles of the core end and those of memory begin to count, which no row has shown.

    Args:
        core_mhz: Core clock of each setting. Shape (C,).
        mem_mhz: Memory clock of each setting. Shape (C,).
    """
    beyond = np.empty(posterior.log_s.shape)
    for mhz in np.unique(mem_mhz):
        here = (rows.mem_mhz == mhz) & (rows.windows[0] > 0.0)
        fastest_mhz = np.ones(len(rows.names))
        np.maximum.at(fastest_mhz, rows.kernel[here], rows.core_mhz[here])
        at = mem_mhz == mhz
        beyond[:, at] = np.log(core_mhz[at] / fastest_mhz[: len(beyond), None])
    own = -_ABOVE * np.expm1(-np.maximum(beyond, 0.0) / _FAR_ABOVE)
    return _with_error(posterior, np.stack([own, own]), seed=5)


_USUAL = 0.03  # deviation of the logarithm of the ratio, before anything was seen (assumed)
_LEAST = 0.005  # of one run's power, besides what co-load leaves unsure: which clock it ran at


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRatio:
    """Power in the step over power alone."""

    ratio: float = 1.0
    spread: float = 0.0  # standard deviation of its logarithm


def step_ratio(
    rows: Rows, posterior: Posterior, counts: Floats, beside_j: float = 0.0
) -> StepRatio:
    """Compare what the step drew with what its kernels are expected to draw.

    Args:
        counts: Launches of each kernel that the step waits for. Shape (K,).
    """
    fastest = max((clocks.mem_mhz or math.inf for clocks in posterior.settings), default=math.inf)
    places = [
        c for c, clocks in enumerate(posterior.settings) if (clocks.mem_mhz or math.inf) == fastest
    ]
    if not rows.step or not places:
        return StepRatio()
    core = np.array([posterior.settings[c].core_mhz or math.nan for c in places])
    time_s, energy_j = (costs[:, places].sum(axis=0) for costs in posterior.costs(counts))
    order = np.argsort(core)
    core, power_w = core[order], ((energy_j + beside_j) / time_s)[order]
    unsure2 = np.array([_power_variance(posterior, counts, places[c]) for c in order])
    logs, precisions = [], []
    for draw in rows.step:
        if not core[0] <= draw.core_mhz <= core[-1]:
            continue
        expected_w = float(np.interp(draw.core_mhz, core, power_w))
        logs.append(math.log(draw.power_w / expected_w))
        # Where kernels by themselves are hardly known, the step says little of the ratio.
        by_itself2 = float(np.interp(draw.core_mhz, core, unsure2))
        precisions.append(1.0 / ((draw.spread_w / draw.power_w) ** 2 + _LEAST**2 + by_itself2))
    precision = math.fsum(precisions) + _USUAL**-2.0
    mean = math.fsum(x * w for x, w in zip(logs, precisions, strict=True)) / precision
    off2 = sum(w * (x - mean) ** 2 for x, w in zip(logs, precisions, strict=True))
    wider = max(1.0, off2 / max(1, len(logs) - 1))
    return StepRatio(ratio=math.exp(mean), spread=math.sqrt(wider / precision))


def _power_variance(posterior: Posterior, counts: Floats, place: int) -> float:
    """Return the variance of the logarithm of the power of all kernels at one setting."""
    time_s, energy_j = (costs[:, place] for costs in posterior.costs(counts))
    of_energy, of_time = energy_j / energy_j.sum(), time_s / time_s.sum()
    moves = posterior.moves[:, :, place]
    moved = (of_energy - of_time)[:, None] * moves[0] + of_energy[:, None] * moves[1]
    shared = moved[:, : posterior.shared].sum(axis=0)
    return float(shared @ shared + (moved[:, posterior.shared :] ** 2).sum())
