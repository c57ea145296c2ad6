"""What a step costs as it runs: on a GPU made of physics the accounting is exact."""

import dataclasses
import math
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drawn_costs import cost_tables
from underclock.core.step.cost_table import CostTable, Heat
from underclock.core.step.power_capped_step import (
    at_lock,
    cap_of,
    fixed_costs,
    grouped,
    known_step,
    memories_like_auto,
    settled_step,
    step_cost,
)
from underclock.gpus.models import gpu_model
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import busy_w, duration_s
from underclock.records import (
    AUTO,
    Accounting,
    Clocks,
    Evidence,
    GpuInfo,
    Granularity,
    Kernel,
    SampleSet,
    Step,
    ThrottleReason,
    Window,
)
from windows import gathered, having

_GPU = gpu_model("rtx3080ti").constants
_BOOST_MHZ, _FASTEST_MEM_MHZ, _STEADY_C = 1890, 9251, 60.0
_CORES = tuple(range(840, _BOOST_MHZ + 1, 30))


@dataclass(frozen=True, kw_only=True)
class PhysicalStep:
    """A GPU and kernels of which everything is known; launches are short against the window."""

    kernels: tuple[KernelConstants, ...]
    counts: tuple[int, ...]

    def cost(self, core_mhz: float) -> tuple[float, float]:
        """Return time in s and energy in J of the step with all launches at one clock."""
        each_s = [duration_s(_GPU, k, core_mhz, _FASTEST_MEM_MHZ) for k in self.kernels]
        each_w = [busy_w(_GPU, k, core_mhz, _FASTEST_MEM_MHZ, _STEADY_C) for k in self.kernels]
        costs = list(zip(self.counts, each_s, each_w, strict=True))
        return math.fsum(n * s for n, s, _ in costs), math.fsum(n * s * w for n, s, w in costs)

    def power_w(self, core_mhz: float) -> float:
        """Return the mean power of the step with all launches at one clock."""
        time_s, energy_j = self.cost(core_mhz)
        return energy_j / time_s

    def clock_at(self, limit_w: float) -> float:
        """Return the one clock at which the step draws a limit; boost where that draws less."""
        low, high = float(_CORES[0]), float(_BOOST_MHZ)
        if self.power_w(high) <= limit_w:
            return high
        for _ in range(50):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.power_w(middle) <= limit_w else (low, middle)
        return low

    @property
    def order(self) -> tuple[int, ...]:
        """Launches of all kernels in turns."""
        most = max(self.counts)
        return tuple(k for turn in range(most) for k, n in enumerate(self.counts) if turn < n)

    def table(self) -> CostTable:
        """Return what kernels cost at locked clocks, cap apart, and alone at boost."""
        settings = tuple(Clocks(core_mhz=core) for core in _CORES)
        core = np.array(_CORES, dtype=np.float64)
        mem = np.full_like(core, _FASTEST_MEM_MHZ)
        counts = np.array(self.counts, dtype=np.float64)[:, None]
        time_s = np.stack([duration_s(_GPU, k, core, mem) for k in self.kernels])
        power_w = np.stack([busy_w(_GPU, k, core, mem, _STEADY_C) for k in self.kernels])
        columns = [*range(len(core)), len(core) - 1]
        return CostTable(
            kernels=tuple(Kernel(name=f"k{k}", count=n) for k, n in enumerate(self.counts)),
            settings=(*settings, AUTO),
            time_s=(time_s * counts)[:, columns],
            energy_j=(time_s * power_w * counts)[:, columns],
            baseline=len(core),
        )

    def sample_set(
        self, limit_w: float, *, core_mhz: float | None = None, says: bool = True
    ) -> SampleSet:
        """Return the step as it runs whole at auto under a limit.

        Args:
            limit_w: Of the GPU.
            core_mhz: The clock that it settles at; by default where it draws the limit.
            says: Whether the driver says why clocks are what they are.
        """
        ran_mhz = self.clock_at(limit_w) if core_mhz is None else core_mhz
        time_s, energy_j = self.cost(ran_mhz)
        held = ThrottleReason.SW_POWER_CAP if ran_mhz < _BOOST_MHZ else ThrottleReason.NONE
        whole = Window(
            kernel="w",
            time_s=time_s,
            energy_j=energy_j,
            throttle_reasons=held if says else None,
            observed=Clocks(core_mhz=round(ran_mhz), mem_mhz=_FASTEST_MEM_MHZ),
        )
        alone = [Window(kernel=f"k{k}", time_s=1.0, energy_j=1.0) for k in range(len(self.counts))]
        return SampleSet(
            evidence=Evidence.SIMULATED,
            gpu=GpuInfo(name="G", power_limit_w=limit_w),
            step=Step(
                name="w",
                kernels=tuple(Kernel(name=f"k{k}", count=n) for k, n in enumerate(self.counts)),
                order=self.order,
            ),
            windows=gathered(tuple(alone), in_situ=(whole,)),
        )


def drawn(seed: int) -> PhysicalStep:
    """Draw up to six kernels of about a millisecond, hot products among them."""
    random = np.random.default_rng(seed)
    kernels = [
        KernelConstants(
            core_mcycles=float(random.uniform(0.3, 2.0)),
            dram_mcycles=float(random.uniform(0.5, 9.0)),
            fixed_s=float(random.uniform(0.0, 2e-5)),
            work_j_per_v2=float(random.uniform(0.05, 0.45)),
            dram_j=0.05,
        )
        for _ in range(random.integers(2, 7))
    ]
    counts = random.integers(1, 5, len(kernels)).tolist()
    return PhysicalStep(kernels=tuple(kernels), counts=tuple(counts))


seeds = st.integers(0, 2**32 - 1)
shares = st.floats(0.05, 0.95)
"""Of the range from what the slowest clock draws to what boost does."""


def limited(seed: int, share: float) -> tuple[PhysicalStep, float]:
    """Return a step and a limit between what it draws at the slowest and the fastest clock."""
    step = drawn(seed)
    slow_w, fast_w = step.power_w(_CORES[0]), step.power_w(_BOOST_MHZ)
    return step, slow_w + share * (fast_w - slow_w)


def known(step: PhysicalStep, limit_w: float) -> CostTable:
    table = known_step(step.table(), step.sample_set(limit_w), limit_w)
    assert table is not None
    return table


def everywhere(table: CostTable, core_mhz: float) -> int:
    """Return the setting of a core clock."""
    return table.settings.index(Clocks(core_mhz=round(core_mhz)))


@pytest.mark.slow
@given(seeds, shares)
def test_auto_settles_where_the_mean_power_is_the_limit(seed: int, share: float) -> None:
    step, limit_w = limited(seed, share)
    found = known(step, limit_w)
    settled = settled_step(found, np.full(len(step.order), found.baseline))

    assert found.closure is not None
    assert found.closure.time == pytest.approx(1.0, abs=2e-3)
    assert found.closure.energy == pytest.approx(1.0, abs=2e-3)
    assert settled.energy_j.sum() / settled.time_s.sum() == pytest.approx(limit_w, rel=1e-4)
    # Launch by launch the clock moves round that, the more the less power follows it.
    mean_mhz = np.average(settled.core_mhz, weights=settled.time_s)
    assert mean_mhz == pytest.approx(step.clock_at(limit_w), abs=15.0)


@pytest.mark.untraced
@given(seeds, shares, st.floats(0.9, 1.1))
@example(seed=4317, share=0.125, off=0.90625)
def test_auto_is_the_step_as_measured_whatever_kernels_say(
    seed: int, share: float, off: float
) -> None:
    step, limit_w = limited(seed, share)
    samples = step.sample_set(limit_w)
    whole = samples.in_situ[0]
    slower = msgspec.structs.replace(whole, time_s=off * whole.time_s, repeat=1)
    samples = having(samples, in_situ=(whole, slower))
    table = known_step(step.table(), samples, limit_w)
    assert table is not None
    assert table.accounting is Accounting.STEP
    assert table.auto_time_s == pytest.approx(0.5 * (1.0 + off) * whole.time_s)
    assert table.auto_energy_j == pytest.approx(whole.energy_j)
    # Locked clocks are at the scale of that step: what the model misses of auto saves nothing.
    assert table.closure is not None
    at_locks_s = step.table().time_s[:, :-1] / table.closure.time
    assert table.time_s[:, :-1] == pytest.approx(at_locks_s)
    highest = np.full(len(step.order), everywhere(table, _BOOST_MHZ))
    cost = step_cost(table, highest)
    assert (cost.time_change, cost.energy_change) == pytest.approx((0.0, 0.0), abs=1e-6)


@pytest.mark.untraced
@given(seeds, st.floats(0.2, 0.95), st.floats(0.95, 1.05), st.floats(0.95, 1.05))
def test_a_step_at_a_lock_sets_the_scale_of_locks_and_auto_that_of_what_the_cap_slows(
    seed: int, share: float, off: float, alone: float
) -> None:
    step, limit_w = limited(seed, share)
    samples, table = step.sample_set(limit_w), step.table()
    below_mhz = max(core for core in _CORES if step.power_w(core) < 0.95 * limit_w)
    time_s, energy_j = step.cost(below_mhz)
    whole = samples.in_situ[0]
    auto = msgspec.structs.replace(whole, time_s=off * whole.time_s, energy_j=off * whole.energy_j)
    locked = Window(
        kernel="",
        time_s=time_s,
        energy_j=energy_j,
        asked=Clocks(core_mhz=below_mhz),
        throttle_reasons=ThrottleReason.NONE,
    )
    alone_too = dataclasses.replace(
        table, time_s=alone * table.time_s, energy_j=alone * table.energy_j
    )
    samples = having(samples, in_situ=(auto, locked))
    seen = at_lock(alone_too, samples)
    assert seen is not None
    assert alone_too.settings[seen[0]] == locked.asked
    time, energy = np.exp(seen[1])
    scaled = dataclasses.replace(
        alone_too, time_s=time * alone_too.time_s, energy_j=energy * alone_too.energy_j
    )
    found = known_step(scaled, samples, limit_w, locked=True)
    assert found is not None

    # Kernels that take longer alone, and an auto at a clock that nothing explains, move no lock.
    for core_mhz in (below_mhz, _CORES[0]):
        cost = step_cost(found, np.full(len(step.order), everywhere(found, core_mhz)))
        assert (cost.time_s, cost.energy_j) == pytest.approx(step.cost(core_mhz))
    highest = step_cost(found, np.full(len(step.order), everywhere(found, _BOOST_MHZ)))
    if share < 0.8:  # nearer to what boost draws, little of a step is slowed that could make it up
        assert (highest.time_change, highest.energy_change) == pytest.approx((0.0, 0.0), abs=2e-3)
    # A step that the cap held at its lock, or held nowhere, says nothing of locks.
    held = msgspec.structs.replace(locked, throttle_reasons=ThrottleReason.SW_POWER_CAP)
    free = msgspec.structs.replace(auto, throttle_reasons=ThrottleReason.NONE)
    assert at_lock(alone_too, having(samples, in_situ=(auto, held))) is None
    assert at_lock(alone_too, having(samples, in_situ=(free, locked))) is None
    # One that draws about what auto draws was held in parts of it.
    hot = msgspec.structs.replace(locked, energy_j=time_s * auto.power_w)
    assert at_lock(alone_too, having(samples, in_situ=(auto, hot))) is None


@pytest.mark.untraced
@given(seeds, st.floats(0.2, 0.95))
def test_a_lock_below_what_the_cap_leaves_is_never_touched(seed: int, share: float) -> None:
    step, limit_w = limited(seed, share)
    table = known(step, limit_w)
    # Each window of it stays below the limit, not its mean only.
    below_mhz = max(core for core in _CORES if step.power_w(core) < 0.97 * limit_w)
    cost = step_cost(table, np.full(len(step.order), everywhere(table, below_mhz)))
    time_s, energy_j = step.cost(below_mhz)

    assert table.closure is not None
    assert cost.time_s * table.closure.time == pytest.approx(time_s)
    assert cost.energy_j * table.closure.energy == pytest.approx(energy_j)


@pytest.mark.untraced
@given(seeds, shares)
def test_one_clock_for_all_costs_what_its_schedule_does(seed: int, share: float) -> None:
    step, limit_w = limited(seed, share)
    heat = Heat(c_per_w=0.1, w_per_c=np.linspace(0.2, 0.5, len(_CORES) + 1))
    table = dataclasses.replace(known(step, limit_w), heat=heat)
    time_s, energy_j = fixed_costs(table)

    for s in (0, len(_CORES) // 2, table.baseline):
        cost = step_cost(table, np.full(len(step.order), s))
        # At the edge of the limit one launch's window may be held a little by itself.
        assert time_s[s] == pytest.approx(cost.time_s, rel=3e-3)
        assert energy_j[s] == pytest.approx(cost.energy_j, rel=3e-3)
    assert (np.diff(time_s[: len(_CORES)]) <= 1e-12).all()


def test_where_the_driver_named_no_cap_the_limit_is_that_of_the_gpu() -> None:
    step, limit_w = limited(3, 0.6)
    table = step.table()
    silent = step.sample_set(limit_w, says=False)
    unread = msgspec.structs.replace(silent, gpu=GpuInfo(name="G"))

    for samples, given_w, expected_w in (
        (silent, 300.0, 300.0),
        (silent, math.inf, limit_w),
        (unread, math.inf, math.inf),
    ):
        found = known_step(table, samples, given_w)
        assert found is not None
        closure = found.missed
        assert cap_of(found).limit_w * closure.energy / closure.time == pytest.approx(expected_w)


def with_memories(step: PhysicalStep, *memories: int | None) -> CostTable:
    """Return a step's costs with the settings at several memory clocks, all costing the same."""
    table = step.table()
    locked = [Clocks(core_mhz=c, mem_mhz=mem) for mem in memories for c in _CORES]
    columns = [*(list(range(len(_CORES))) * len(memories)), table.baseline]
    return dataclasses.replace(
        table,
        settings=(*locked, AUTO),
        time_s=table.time_s[:, columns],
        energy_j=table.energy_j[:, columns],
        baseline=len(locked),
    )


@pytest.mark.parametrize(
    ("memories", "expected"),
    [
        ((5001, None), None),  # memory left to the driver is what auto does
        ((5001, 9251, 9501), 9251),  # then what was read at auto
        ((405, 5001), 5001),  # then the fastest
    ],
)
def test_the_memory_clock_of_boost_is_the_one_most_like_auto(
    memories: tuple[int | None, ...], expected: int | None
) -> None:
    step, limit_w = limited(1, 0.5)
    table, samples = with_memories(step, *memories), step.sample_set(limit_w)
    found = known_step(table, samples, limit_w)

    assert memories_like_auto(table.settings[:-1], samples)[0] == expected
    assert found is not None
    assert table.settings[cap_of(found).boost] == Clocks(core_mhz=_BOOST_MHZ, mem_mhz=expected)


def test_a_setting_that_some_kernel_lacks_is_none_for_the_whole_step() -> None:
    step, limit_w = limited(1, 0.5)
    table = with_memories(step, 5001, None)
    table.time_s[0, 0] = table.energy_j[0, 0] = math.inf
    slow = table.settings.index(Clocks(core_mhz=_CORES[0], mem_mhz=5001))
    found = known_step(table, step.sample_set(limit_w), limit_w)
    assert found is not None
    warm = dataclasses.replace(
        found, heat=Heat(c_per_w=0.1, w_per_c=np.full(len(table.settings), 0.3))
    )

    for each in (found, warm):
        time_s, energy_j = fixed_costs(each)
        assert (time_s[slow], energy_j[slow]) == (math.inf, math.inf)
        assert np.isfinite(np.delete(time_s, slow)).all()
        assert np.isfinite(np.delete(energy_j, slow)).all()
    found.time_s[0, : len(_CORES)] = found.energy_j[0, : len(_CORES)] = math.inf
    assert np.isinf(fixed_costs(found)[0][: len(_CORES)]).all()


def test_kernels_alone_are_no_step() -> None:
    table = drawn(0).table()

    assert table.accounting is Accounting.ISOLATED
    for ask in (lambda: cap_of(table), lambda: settled_step(table, np.zeros(19, dtype=np.int64))):
        with pytest.raises(ValueError, match="costs are of kernels alone, and a step is asked for"):
            ask()


@given(st.floats(0.0, 0.2), st.floats(0.0, 2.0), st.floats(50.0, 500.0), st.floats(50.0, 500.0))
def test_heat_settles_where_temperature_and_power_agree(
    c_per_w: float, w_per_c: float, mean_w: float, auto_w: float
) -> None:
    heat = Heat(c_per_w=c_per_w, w_per_c=np.array([w_per_c]))
    extra_w = heat.extra_w(mean_w, auto_w, w_per_c)
    warmer_c = c_per_w * (mean_w + extra_w - auto_w)

    assert extra_w == pytest.approx(w_per_c * warmer_c)
    assert extra_w * (mean_w - auto_w) >= 0.0
    assert heat.extra_w(auto_w, auto_w, w_per_c) == 0.0


granularities = st.sampled_from(Granularity)


@given(cost_tables(), granularities)
def test_a_group_sums_its_members_and_has_a_setting_only_where_each_was_measured(
    table: CostTable, granularity: Granularity
) -> None:
    groups = grouped(table, granularity)

    for group in range(len(groups.time_s)):
        members = groups.member == group
        known = np.isfinite(table.time_s[members]).all(axis=0)
        assert (np.isfinite(groups.time_s[group]) == known).all()
        assert (np.isfinite(groups.energy_j[group]) == known).all()
    assert groups.time_s.sum(axis=0) == pytest.approx(table.time_s.sum(axis=0))
    assert groups.energy_j.sum(axis=0) == pytest.approx(table.energy_j.sum(axis=0))
