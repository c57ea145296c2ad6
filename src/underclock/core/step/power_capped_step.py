"""What a step costs as it runs: locked clocks under one power cap, against auto as measured.

Auto by the model differs from auto as measured by the model's residual, the closure. All costs at
locked clocks, and the power limit, are scaled so that the model has auto as measured; the residual
then widens the error of other clocks and is never counted as a saving. Where the step also ran
whole at a locked clock that the cap let be, costs at locked clocks are scaled to that run, and what
is left of the residual at auto is put on what the cap slows alone: where power over clock is no
curve, the model misses the clock at which the cap holds auto, which says nothing of locked ones.

`power_cap.settle` lets the ceiling follow the mean power at once. A real loop moves it by one bin
of the core clock at each tick of about 20 ms (measured on an H200), so a step with a long part of
low power, an optimizer of 0.1 s for instance, gets lower clocks from it. `lag_of` therefore
simulates the loop launch by launch and tick by tick until it repeats.

Shape letters: K kernels, G groups, S settings, C clocks, n launches.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from underclock.arrays import Floats, Ints
from underclock.core.step.cost_table import CostTable, overlapped, shared_out, step_means
from underclock.core.step.power_cap import (
    LaunchCosts,
    PowerCap,
    SettledStep,
    driver_says,
    held_at_auto,
    settle,
    settled_at,
)
from underclock.errors import DataError
from underclock.gpus.models import gpu_model, name_of_model
from underclock.physics.cap import REAL, SIMULATED, WINDOW_S
from underclock.records import Clocks, Closure, Cost, Evidence, Granularity, SampleSet, Window

_TICK_S, _BIN_MHZ = 0.02, 15.0
_SLACK = 0.01  # of the limit, that it leaves before it climbs (assumed)
_FAST, _MOST_BINS = 0.05, 4  # a bin more for each of this part above the limit (assumed)
_LAG_ROUNDS, _LEAST_S = 4, 2.0  # the first half is not counted
_FEWEST = 2  # clocks
_CALIBRATED = 3  # rounds, until the known step draws what was measured


def lag_of(
    known: tuple[PowerCap, LaunchCosts], mean_w: float, new: tuple[PowerCap, LaunchCosts]
) -> tuple[float, float]:
    """Return how much longer, and by how much more energy, a lag lets a step run than a known one.

    Both against what `settle` says of them; the known one drew ``mean_w``.
    """
    limit_w = known[0].limit_w
    if min(_round_s(*known), _round_s(*new)) < WINDOW_S:
        return 1.0, 1.0  # one ceiling holds for all of a short step
    if min(len(_ladder(*known)[0]), len(_ladder(*new)[0])) < _FEWEST:
        return 1.0, 1.0  # there is no second clock to climb to
    for _ in range(_CALIBRATED):
        time_s, energy_j = _lagged(*known, limit_w)
        limit_w *= mean_w * time_s / energy_j
    before = np.divide(_lagged(*known, limit_w), _settled(*known))
    time, energy = np.divide(_lagged(*new, limit_w), _settled(*new)) / before
    return float(time), float(energy)


def _settled(cap: PowerCap, costs: LaunchCosts) -> tuple[float, float]:
    step = settle(cap, costs, np.full(len(cap.order), cap.boost))
    return float(step.time_s.sum()), float(step.energy_j.sum())


def _round_s(cap: PowerCap, costs: LaunchCosts) -> float:
    """Return how long a step takes that nothing holds."""
    return float(costs.time_s[cap.order, cap.boost].sum())


def _lagged(cap: PowerCap, costs: LaunchCosts, limit_w: float) -> tuple[float, float]:
    core_mhz, time_s, power_w = _ladder(cap, costs)
    top = len(core_mhz) - 1
    bins = _BIN_MHZ * top / float(core_mhz[-1] - core_mhz[0])
    # The ceiling is a place on the ladder of clocks; the mean that the loop sees has two stages.
    place, first_w, average_w = float(top), limit_w, limit_w
    now_s, to_tick_s = 0.0, _TICK_S
    rounds: list[tuple[float, float]] = []
    while len(rounds) < _LAG_ROUNDS or now_s < _LEAST_S:
        begun_s, energy_j = now_s, 0.0
        for k in cap.order.tolist():
            left = 1.0
            while left > 0.0:
                low = min(int(place), top - 1)
                share = place - low
                takes_s = (1.0 - share) * time_s[k][low] + share * time_s[k][low + 1]
                drawn_w = (1.0 - share) * power_w[k][low] + share * power_w[k][low + 1]
                stride_s = min(left * takes_s, to_tick_s)
                left = 0.0 if stride_s >= left * takes_s else left - stride_s / takes_s
                energy_j += stride_s * drawn_w
                past = stride_s / cap.fading.each_s
                fade, behind_w = math.exp(-past), first_w - drawn_w
                average_w = drawn_w + (average_w - drawn_w + behind_w * past) * fade
                first_w = drawn_w + behind_w * fade
                now_s, to_tick_s = now_s + stride_s, to_tick_s - stride_s
                if to_tick_s > 0.0:
                    continue
                to_tick_s = _TICK_S
                above = (first_w if cap.fading.stages == 1 else average_w) / limit_w - 1.0
                if above > 0.0:
                    place = max(0.0, place - bins * min(_MOST_BINS, 1 + int(above / _FAST)))
                elif above < -_SLACK:
                    place = min(float(top), place + bins)
        rounds.append((now_s - begun_s, energy_j))
    time, energy = np.mean(rounds[len(rounds) // 2 :], axis=0).tolist()
    return time, energy


def _ladder(
    cap: PowerCap, costs: LaunchCosts
) -> tuple[Floats, list[list[float]], list[list[float]]]:
    """Return clocks of the memory clock that auto has, ascending, and time and power there."""
    memory = costs.settings[cap.boost].mem_mhz
    known = np.isfinite(costs.time_s).all(axis=0)
    core = np.array([c.core_mhz or math.nan for c in costs.settings])
    of = np.array([c.mem_mhz == memory for c in costs.settings]) & known & np.isfinite(core)
    places = np.flatnonzero(of)[np.argsort(core[of])]
    time_s, energy_j = costs.time_s[:, places], costs.energy_j[:, places]
    return core[places], time_s.tolist(), (energy_j / time_s).tolist()


_FREE = 0.97  # of what auto draws at its limit: what draws more is held in parts of the step
_A_LITTLE = 0.01
_MOST = 0.2  # that what the cap slows may be off by: where it slows little, little says how much
_ROUNDS = 3  # of the temperature at auto, which its power depends on


def known_step(
    table: CostTable, sample_set: SampleSet, limit_w: float, *, locked: bool = False
) -> CostTable | None:
    """Put a step under its cap: its baseline is the step as measured, shared among its kernels.

    Args:
        table: Costs at locked clocks, cap apart; the baseline is its last setting.
        limit_w: Power at which kernels alone are held; ``inf`` where none was.
        locked: Whether costs at locks are known by the step there, and not by what it is at auto.

    Returns:
        ``None`` where a kernel's cost at boost is unknown, so that nothing can be said of auto.

    Raises:
        DataError: Launches that the step does not wait for come to as much as the step.
    """
    boost = _boost(table, sample_set)
    if boost is None:
        return None
    order = np.array(sample_set.order, dtype=np.int64)
    real_s, real_j = step_means(sample_set.in_situ)
    if not math.isfinite(limit_w):
        limit_w = sample_set.gpu.power_limit_w or math.inf
    fading, model = REAL, name_of_model(sample_set.gpu.name)
    if sample_set.evidence is not Evidence.MEASURED:
        fading = SIMULATED if model is None else gpu_model(model).cap_fading
    cap = PowerCap(limit_w=limit_w, order=order, boost=boost, fading=fading)
    if held_at_auto(sample_set):
        # The step is held, so its own mean power is where the loop settles.
        cap, settled = settled_at(cap, table.launches, real_j / real_s)
    else:
        settled = settle(cap, table.launches, np.full(len(order), boost))
    for of_launches, real in ((settled.time_s, real_s), (settled.energy_j, real_j)):
        hidden = float(of_launches[overlapped(table.kernels)[order]].sum())
        if hidden >= real:
            raise DataError(
                f"the whole step cost {real:g} s or J, no more than the {hidden:g} of launches "
                "that it does not wait for",
                hint="trace the step again, and measure it anew",
            )
    closure = Closure(
        time=float(settled.time_s.sum()) / real_s, energy=float(settled.energy_j.sum()) / real_j
    )
    under = dataclasses.replace(table, closure=closure, power_cap=cap)
    if locked:
        # At the limit time and energy are off alike, as the power is the limit.
        asked, more = np.full(len(order), boost), dataclasses.replace(cap, slowed=1.0 + _A_LITTLE)
        model_s = float(settled.time_s.sum())
        slowed_s = float(settle(more, table.launches, asked).time_s.sum()) - model_s
        missing_s = (real_s - model_s) * _A_LITTLE
        missing = missing_s / slowed_s if slowed_s > 0.0 else 0.0
        cap = dataclasses.replace(cap, slowed=1.0 + float(np.clip(missing, -_MOST, _MOST)))
        return _with_auto(dataclasses.replace(under, power_cap=cap), settled, real_s, real_j)
    settled = dataclasses.replace(
        settled, time_s=settled.time_s / closure.time, energy_j=settled.energy_j / closure.energy
    )
    return _with_auto(at_scale_of_auto(under, closure), settled, real_s, real_j)


def at_lock(table: CostTable, sample_set: SampleSet) -> tuple[int, Floats] | None:
    """Return log time and energy of the step over its kernels' at a lock that the cap let be, (2,).

    ``None`` where the step did not run so, or the cap did not hold it at auto.
    """
    auto_c = [w.temperature_c for w in sample_set.in_situ if driver_says(w.throttle_reasons)]
    warm_c = [celsius for celsius in auto_c if celsius is not None]
    at, off = 0, []
    auto_s, auto_j = step_means(sample_set.in_situ)
    for step in sample_set.locked_steps if auto_c else ():
        if step.asked not in table.settings or not is_free(step, auto_j / auto_s):
            continue
        at, cooler_j = table.settings.index(step.asked), 0.0
        if table.heat is not None and step.temperature_c is not None and warm_c:
            cooler_c = float(np.mean(warm_c)) - step.temperature_c  # costs are as warm as auto
            cooler_j = float(table.heat.w_per_c[at]) * cooler_c * step.time_s
        sums = table.time_s[:, at].sum(), table.energy_j[:, at].sum()
        off.append(np.log(np.divide([step.time_s, step.energy_j + cooler_j], sums)))
    return (at, np.mean(off, axis=0)) if off and np.isfinite(off).all() else None


def is_free(step: Window, auto_w: float) -> bool:
    """Whether the cap lets a step at a lock be: what draws about as much as auto it holds a bit."""
    return driver_says(step.throttle_reasons) is False and step.power_w < _FREE * auto_w


def at_scale_of_auto(table: CostTable, closure: Closure) -> CostTable:
    """Return costs at locked clocks as they are where the model has auto as it was measured.

    The limit is scaled as power is, and the loop's window as time is, so that the loop settles at
    the same clocks.

    Args:
        closure: What the model says of the step at auto, over what was measured.
    """
    cap = cap_of(table)
    limit_w = cap.limit_w * closure.time / closure.energy
    fading = dataclasses.replace(cap.fading, each_s=cap.fading.each_s / closure.time)
    locked = np.arange(len(table.settings)) != table.baseline
    return dataclasses.replace(
        table,
        time_s=np.where(locked, table.time_s / closure.time, table.time_s),
        energy_j=np.where(locked, table.energy_j / closure.energy, table.energy_j),
        beside_j=None if table.beside_j is None else table.beside_j / closure.energy,
        power_cap=dataclasses.replace(cap, limit_w=limit_w, fading=fading),
    )


def settled_step(table: CostTable, choice: Ints) -> SettledStep:
    """Say how a schedule runs: settings of launches, (n,), of which the baseline asks for boost."""
    cap = cap_of(table)
    return settle(cap, table.launches, np.where(choice == table.baseline, cap.boost, choice))


def step_cost(table: CostTable, choice: Ints) -> Cost:
    """Return what a schedule, a setting for each launch, (n,), costs against auto."""
    return step_cost_and_heat(table, choice)[0]


def step_cost_and_heat(table: CostTable, choice: Ints) -> tuple[Cost, float, bool]:
    """Return what a schedule costs, what of its change heat adds, and whether the cap holds it."""
    if (choice == table.baseline).all():
        return against_auto(table, table.auto_time_s, table.auto_energy_j), 0.0, True
    settled = settled_step(table, choice)
    time_s, energy_j = math.fsum(settled.time_s), math.fsum(settled.energy_j)
    added_j = heat_w(table, choice, settled) * time_s
    cost = against_auto(table, time_s, energy_j + added_j)
    return cost, added_j / table.auto_energy_j, settled.is_held


def heat_w(table: CostTable, choice: Ints, settled: SettledStep) -> float:
    """Return what a schedule draws more in W, for being at another temperature than at auto."""
    if table.heat is None:
        return 0.0
    w_per_c = float(np.average(table.heat.w_per_c[choice], weights=settled.time_s))
    mean_w = math.fsum(settled.energy_j) / math.fsum(settled.time_s)
    return float(table.heat.extra_w(mean_w, table.auto_w, w_per_c))


def fixed_costs(table: CostTable) -> tuple[Floats, Floats]:
    """Return time in s and energy in J of the step at one setting for all, (S,); inf if unknown."""
    (time_s,), (energy_j,) = fixed_part_costs(table, np.zeros_like(cap_of(table).order))
    time_s[table.baseline], energy_j[table.baseline] = table.auto_time_s, table.auto_energy_j
    return time_s, energy_j


def fixed_part_costs(table: CostTable, part: Ints) -> tuple[Floats, Floats]:
    """Return time in s and energy in J of parts of the step at one setting for all. Shapes (P, S).

    Parts are of each launch, (n,), counted from 0; costs are ``inf`` where unknown.
    """
    cap, launches = cap_of(table), table.launches
    known = [bool(each.all()) for each in np.isfinite(table.time_s).T]
    known[table.baseline] = False
    core = np.array([clocks.core_mhz or 0 for clocks in table.settings], dtype=np.float64)
    costs = np.full((2, int(part.max()) + 1, len(core)), np.inf)

    def of_parts(of_launches: Floats) -> Floats:
        return np.bincount(part, weights=of_launches).astype(np.float64)

    for memory in dict.fromkeys(clocks.mem_mhz for clocks in table.settings):
        same = [s for s, c in enumerate(table.settings) if c.mem_mhz == memory and known[s]]
        if not same:
            continue
        # What the cap makes of the fastest clock is a ceiling for the slower ones.
        fastest = max(same, key=lambda s: core[s])
        held = settle(cap, launches, np.full(len(cap.order), fastest))
        for s in same:
            free = core[s] <= held.core_mhz
            costs[0, :, s] = of_parts(np.where(free, launches.time_s[cap.order, s], held.time_s))
            costs[1, :, s] = of_parts(
                np.where(free, launches.energy_j[cap.order, s], held.energy_j)
            )
    time_s, energy_j = costs
    if table.heat is not None:
        with np.errstate(invalid="ignore"):
            mean_w = energy_j.sum(axis=0) / time_s.sum(axis=0)
            energy_j += table.heat.extra_w(mean_w, table.auto_w, table.heat.w_per_c) * time_s
        energy_j[:, np.logical_not(known)] = np.inf
    for each, at_auto in ((time_s, launches.time_s), (energy_j, launches.energy_j)):
        each[:, table.baseline] = of_parts(at_auto[cap.order, table.baseline])
    return time_s, energy_j


def against_auto(table: CostTable, time_s: float, energy_j: float) -> Cost:
    """Return a step's cost, against auto."""
    return Cost(
        time_s=time_s,
        energy_j=energy_j,
        time_change=time_s / table.auto_time_s - 1.0,
        energy_change=energy_j / table.auto_energy_j - 1.0,
    )


def cap_of(table: CostTable) -> PowerCap:
    """Return what holds a step's power.

    Raises:
        ValueError: Costs are not those of a step.
    """
    if table.power_cap is None:
        raise ValueError(
            "costs are of kernels alone, and a step is asked for: kernels alone have no step that "
            "a limit could hold"
        )
    return table.power_cap


def _boost(table: CostTable, sample_set: SampleSet) -> int | None:
    """Return the setting that stands for auto before the cap; ``None`` where it is not known."""
    # It must be known of every kernel, and so must slower core clocks, for the cap may hold any.
    known = [bool(each.all()) for each in np.isfinite(table.time_s).T]
    locked = table.settings[:-1]
    for memory in memories_like_auto(locked, sample_set):
        same = [s for s, clocks in enumerate(locked) if clocks.mem_mhz == memory]
        same.sort(key=lambda s: locked[s].core_mhz or 0)
        while same and not known[same[-1]]:
            same.pop()
        if same:
            return same[-1]
    return None


def memories_like_auto(locked: Sequence[Clocks], sample_set: SampleSet) -> list[int | None]:
    """Return the memory clocks of some settings, those that are most like auto first."""
    read = [sample.observed.mem_mhz for sample in sample_set.in_situ if sample.observed]
    there = {clocks.mem_mhz for clocks in locked}
    fastest = sorted((mhz for mhz in there if mhz is not None), reverse=True)
    return [mhz for mhz in dict.fromkeys((None, *read, *fastest)) if mhz in there]


def auto_core_mhz(table: CostTable) -> dict[int, int]:
    """Return the core clock that the cap leaves each kernel at auto, averaged over its time.

    Returns:
        By place in the table; empty where nothing is known of the step's auto.
    """
    cap = table.power_cap
    if cap is None:
        return {}
    settled = settled_step(table, np.full(len(cap.order), table.baseline))
    time_s = np.bincount(cap.order, settled.time_s)
    mhz = np.bincount(cap.order, settled.time_s * settled.core_mhz) / time_s
    return dict(enumerate(np.rint(mhz).astype(np.int64).tolist()))


def nearest_settings(table: CostTable, settled: SettledStep, boost: int) -> Ints:
    """Return the locked setting nearest to where each launch settled. Shape (n,)."""
    memory = table.settings[boost].mem_mhz
    same = [s for s, clocks in enumerate(table.settings[:-1]) if clocks.mem_mhz == memory]
    core = np.array([table.settings[s].core_mhz or 0 for s in same], dtype=np.float64)
    away = np.abs(core[None, :] - settled.core_mhz[:, None])
    nearest: Ints = np.array(same, dtype=np.int64)[away.argmin(axis=1)]
    return nearest


@dataclass(frozen=True, slots=True)
class Grouped:
    """Costs of groups of kernels."""

    member: Ints  # group of each kernel, (K,)
    time_s: Floats  # sum over the group; ``inf`` unless every member was measured, (G, S)
    energy_j: Floats  # sum over the group; ``inf`` unless every member was measured, (G, S)

    def spread(self, choice: tuple[int, ...] | Ints) -> Ints:
        """Turn a setting per group into a setting per kernel. Shape (K,)."""
        return np.asarray(choice, dtype=np.int64)[self.member]

    def added(self, of_kernels: Floats) -> Floats:
        """Add up something of kernels, (K, S), at each setting. Shape (G, S)."""
        sums = np.zeros((len(self.time_s), of_kernels.shape[1]))
        np.add.at(sums, self.member, of_kernels)
        return sums

    def auto_s(self, table: CostTable) -> Floats:
        """Return the time of each group at auto, in s. Shape (G,)."""
        at_auto_s = table.time_s[:, table.baseline]
        return np.bincount(self.member, weights=at_auto_s).astype(np.float64)


def grouped(table: CostTable, granularity: Granularity) -> Grouped:
    """Add up the kernels that must share a setting."""
    if granularity is Granularity.STEP and table.power_cap is not None:
        time_s, energy_j = fixed_costs(table)
        return Grouped(np.zeros(len(table.kernels), dtype=np.int64), time_s[None], energy_j[None])
    time_s, energy_j, member = table.time_s, table.energy_j, np.arange(len(table.kernels))
    if granularity is not Granularity.KERNEL:
        member = np.zeros(len(table.kernels), dtype=np.int64)
        if granularity is Granularity.PASS:
            passes = list(dict.fromkeys(kernel.pass_ for kernel in table.kernels))
            member = np.array([passes.index(kernel.pass_) for kernel in table.kernels])
        belongs = np.arange(member.max() + 1)[:, None] == member
        time_s = np.stack([table.time_s[row].sum(axis=0) for row in belongs])
        energy_j = np.stack([table.energy_j[row].sum(axis=0) for row in belongs])
    if table.power_cap is not None:
        # Leave auto out, a cost of the whole step: among locked kernels it differs.
        time_s, energy_j = time_s.copy(), energy_j.copy()
        time_s[:, table.baseline] = energy_j[:, table.baseline] = np.inf
        if granularity is Granularity.KERNEL and table.left is not None:
            # Leave kernels that nothing is known of no choice but auto; they ask for boost then.
            for costs, known in ((time_s, table.time_s), (energy_j, table.energy_j)):
                costs[table.left] = np.inf
                costs[table.left, table.baseline] = known[table.left, table.power_cap.boost]
    return Grouped(member, time_s, energy_j)


def auto_expected(table: CostTable, order: Ints, known: CostTable) -> CostTable:
    """Return the costs of a step that never ran, auto as the cap of one that did leaves it.

    The loop settles where it did, as late as it does (`lag_of`). Temperature is that of the step's
    own mean power.

    Args:
        table: Costs at locked clocks, at the scale and temperature of the known step, with its
            closure, cap and heat.
        order: Kernel of each launch. Shape (n,).
    """
    table = dataclasses.replace(table, power_cap=dataclasses.replace(cap_of(table), order=order))
    settled = _with_auto_settled(table)
    lag = lag_of((cap_of(known), known.launches), known.auto_w, (cap_of(table), settled.launches))
    closure = Closure(time=table.missed.time / lag[0], energy=table.missed.energy / lag[1])
    table = dataclasses.replace(table, closure=closure)
    settled = _with_auto_settled(table, lag)
    if table.heat is None:
        return settled
    for _ in range(_ROUNDS):
        warmer_c = table.heat.c_per_w * (settled.auto_w - known.auto_w)
        warmer_j = np.where(np.isfinite(table.time_s), table.time_s, 0.0) * (
            table.heat.w_per_c * warmer_c
        )
        warmer = dataclasses.replace(table, energy_j=table.energy_j + warmer_j)
        settled = _with_auto_settled(warmer, lag)
    return settled


def _with_auto_settled(table: CostTable, lag: tuple[float, float] = (1.0, 1.0)) -> CostTable:
    """Return a step whose auto is what its cap is expected to leave it, times what a lag makes."""
    settled = settled_step(table, np.full(len(cap_of(table).order), table.baseline))
    time_s, energy_j = float(settled.time_s.sum()), float(settled.energy_j.sum())
    return _with_auto(table, settled, time_s * lag[0], energy_j * lag[1])


def _with_auto(table: CostTable, settled: SettledStep, auto_s: float, auto_j: float) -> CostTable:
    cap = cap_of(table)
    time_s, energy_j = table.time_s.copy(), table.energy_j.copy()
    time_s[:, table.baseline] = shared_out(table.kernels, cap.order, settled.time_s, auto_s)
    energy_j[:, table.baseline] = shared_out(table.kernels, cap.order, settled.energy_j, auto_j)
    return dataclasses.replace(table, time_s=time_s, energy_j=energy_j)
