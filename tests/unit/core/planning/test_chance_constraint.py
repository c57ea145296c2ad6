"""A time budget that holds with confidence: no choice overruns it, and little of it is unused."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.arrays import Floats, Ints
from underclock.core.model.costs import ONE_SIDED, PredictedChange, TimeVariance
from underclock.core.planning.chance_constraint import Candidate, room, within_confidence
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_capped_step import grouped
from underclock.records import AUTO, Clocks, Granularity, Kernel, Status


def changed(time: float, energy: float, spread: float) -> PredictedChange:
    return PredictedChange(
        time_change=time, energy_change=energy, time_spread=spread, energy_spread=0.0
    )


@pytest.mark.untraced
@given(st.floats(0.0, 0.05), st.floats(0.0, 0.01))
def test_room_is_kept_for_the_whole_time_as_expected_and_for_the_tolerance_with_confidence(
    spread: float, tolerance: float
) -> None:
    least = room(spread, tolerance)

    assert least >= 0.0
    assert ONE_SIDED * spread - least <= tolerance + 1e-12
    assert room(spread, 0.0) == ONE_SIDED * spread
    assert least in {ONE_SIDED * spread - tolerance, 0.0}


@dataclass(frozen=True)
class Menu:
    """Kernels with some settings each, of known changes, each with an error of its own.

    One error more is shared by all, and one by all that are at a setting. Shapes (K, S).
    """

    time: Floats
    energy: Floats
    spread: Floats
    shared: Floats
    budget: float
    at_setting: float = 0.0

    @classmethod
    def drawn(
        cls, seed: int, kernels: int = 5, settings: int = 4, at_setting: float = 0.0
    ) -> "Menu":
        random = np.random.default_rng(seed)
        time = random.uniform(-0.01, 0.02, (kernels, settings))
        energy = -np.abs(time) * random.uniform(0.0, 6.0, (kernels, settings))
        spread = 10.0 ** random.uniform(-4.5, -1.5, (kernels, settings))
        shared = random.normal(0.0, 0.003, (kernels, settings))
        for each in (time, energy, spread, shared):
            each[:, -1] = 0.0  # auto
        return cls(time, energy, spread, shared, float(random.uniform(0.0, 0.03)), at_setting)

    @property
    def table(self) -> CostTable:
        kernels, settings = self.time.shape
        return CostTable(
            kernels=tuple(Kernel(name=f"k{k}") for k in range(kernels)),
            settings=(*(Clocks(core_mhz=600 + c) for c in range(settings - 1)), AUTO),
            time_s=1.0 / kernels + self.time,
            energy_j=1.0 / kernels + self.energy,
            baseline=settings - 1,
        )

    def alike(self, setting: Ints) -> Floats:
        alike = np.bincount(setting, minlength=self.time.shape[1]).astype(np.float64)
        alike[-1] = 0.0
        return alike

    def predicted_change(self, setting: Ints) -> PredictedChange:
        at = np.arange(len(setting)), setting
        variance = (self.spread[at] ** 2).sum() + self.shared[at].sum() ** 2
        variance += float((self.at_setting * self.alike(setting) ** 2).sum())
        return changed(
            float(self.time[at].sum()), float(self.energy[at].sum()), float(np.sqrt(variance))
        )

    def time_variance(self, setting: Ints) -> TimeVariance:
        along = self.shared[np.arange(len(setting)), setting].sum()
        alike = self.alike(setting)
        of_entries = self.spread**2 + 2.0 * along * self.shared + 2.0 * self.at_setting * alike
        rest = -float(along**2 + (self.at_setting * alike**2).sum())
        return TimeVariance(rest=rest, of_entries=of_entries)

    @property
    def every(self) -> list[Ints]:
        kernels, settings = self.time.shape
        return [np.array(each) for each in itertools.product(range(settings), repeat=kernels)]

    def choose(self, aim: float, prices: Floats | None) -> Candidate | None:
        """Return the best of all choices within an aim, by trying them all."""
        kernels, _ = self.time.shape
        every = np.array(self.every)
        at = np.arange(kernels)[None, :], every
        taken = self.time[at].sum(axis=1)
        if prices is not None:
            taken = taken + prices[at].sum(axis=1)
        energy = np.where(taken <= aim + 1e-12, self.energy[at].sum(axis=1), np.inf)
        best = int(energy.argmin())
        return (
            None
            if np.isinf(energy[best])
            else Candidate(setting=every[best], status=Status.OPTIMAL, gap=0.0)
        )

    def keeps(self, setting: Ints) -> bool:
        change = self.predicted_change(setting)
        return change.time_change + ONE_SIDED * change.time_spread <= self.budget + 1e-6

    @property
    def least(self) -> float:
        """The least energy of all choices that keep the budget with confidence."""
        return min(self.predicted_change(e).energy_change for e in self.every if self.keeps(e))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_priced_variance_keeps_the_budget_and_is_never_worse_than_a_lower_aim(seed: int) -> None:
    menu = Menu.drawn(seed)
    parts = menu.table, grouped(menu.table, Granularity.KERNEL)
    kept = within_confidence(menu.budget, menu.choose, menu, parts=parts)
    lower = within_confidence(menu.budget, menu.choose, menu)

    if kept is None:
        assert lower is None
        assert menu.least == pytest.approx(0.0), "only auto keeps the budget"
        return
    assert menu.keeps(kept.setting)
    reached = menu.predicted_change(kept.setting).energy_change
    assert lower is None or reached <= menu.predicted_change(lower.setting).energy_change
    assert kept.gap is not None
    assert 1.0 + menu.least >= (1.0 + reached) * (1.0 - kept.gap) - 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("at_setting", [0.0, 2e-5])
def test_prices_and_parts_come_near_the_best_choice_there_is(at_setting: float) -> None:
    lost = {True: 0.0, False: 0.0}
    for seed in range(20):
        menu = Menu.drawn(seed, kernels=7, settings=3, at_setting=at_setting)
        parts = menu.table, grouped(menu.table, Granularity.KERNEL)
        for both, of in ((True, parts), (False, None)):
            kept = within_confidence(menu.budget, menu.choose, menu, parts=of)
            reached = 0.0 if kept is None else menu.predicted_change(kept.setting).energy_change
            assert kept is None or menu.keeps(kept.setting)
            lost[both] += (reached - menu.least) / 20

    assert lost[True] < 0.003, lost
    assert lost[True] < 0.15 * lost[False], lost
