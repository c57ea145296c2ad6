"""Clocks learned from blocks of steps, on worlds whose best clock is known."""

from dataclasses import replace

import numpy as np
import pytest

from underclock.arrays import Floats, Ints
from underclock.learning.learner import Learner, LearningStage
from underclock.learning.response import BlockReading, Response

LISTED = tuple(range(210, 2101, 15))
_AUTO_MHZ, _AUTO_S, _AUTO_W = 1900.0, 0.1, 300.0


class World:
    """Segments that take and draw by simple laws, with noise, and steps that are odd now and then.

    Args:
        bound: Core-bound part of each segment's time.
        static: Part of the power that no clock changes.
    """

    def __init__(self, *bound: float, static: float = 0.4, seed: int = 0) -> None:
        self.bound, self.static = np.array(bound), static
        self._random = np.random.default_rng(seed)
        self._drift = 0.0

    def true(self, core_mhz: Floats) -> tuple[float, float]:
        """Return time and energy of a step against auto."""
        times, energies = self._costs(core_mhz)
        at_auto = self._costs(np.full(len(self.bound), _AUTO_MHZ))
        return times.sum() / at_auto[0].sum() - 1, energies.sum() / at_auto[1].sum() - 1

    def block(self, core_mhz: Floats, *, at_auto: bool) -> BlockReading:
        """Return a block at some clocks, as it would be seen."""
        times, energies = self._costs(core_mhz)
        random = self._random
        odd = 1.05 if random.random() < 0.01 else 1.0
        self._drift = 0.98 * self._drift + random.normal(0.0, 0.002)
        seen_j = energies.sum() * odd * (1.0 + self._drift + random.normal(0.0, 0.004))
        return BlockReading(
            at_auto=at_auto,
            core_mhz=core_mhz + random.normal(0.0, 3.0, len(core_mhz)),
            times_s=times * odd * (1.0 + random.normal(0.0, 0.003, len(times))),
            energy_j=float(seen_j),
            steps=10,
        )

    def _costs(self, core_mhz: Floats) -> tuple[Floats, Floats]:
        ratio = np.minimum(core_mhz, _AUTO_MHZ) / _AUTO_MHZ
        times = _AUTO_S * (1.0 - self.bound + self.bound / ratio)
        return times, times * _AUTO_W * (self.static + (1.0 - self.static) * ratio**2.4)


class Capped(World):
    """Segments under a power cap, which lowers one ceiling for both.

    Args:
        limit_w: The cap; asking for more than it allows costs time.
    """

    def __init__(self, *bound: float, limit_w: float) -> None:
        super().__init__(*bound)
        self._limit_w = limit_w
        self.auto = np.full(len(bound), 1900.0)
        self.auto_mhz = float(self.ran(self.auto)[0])

    def block(self, core_mhz: Floats, *, at_auto: bool) -> BlockReading:
        asked = self.auto if at_auto else core_mhz
        ran, lost = self.ran(asked), self._lost(asked)
        block = super().block(ran, at_auto=at_auto)
        return replace(
            block,
            core_mhz=ran if at_auto else asked,
            times_s=block.times_s * lost,
            energy_j=None if block.energy_j is None else block.energy_j * float(lost.mean()),
            is_capped=not at_auto and bool((ran < asked).any()),
        )

    def true(self, core_mhz: Floats) -> tuple[float, float]:
        (time, energy), (auto_s, auto_j) = (
            [float((each * self._lost(asked)).sum()) for each in self._costs(self.ran(asked))]
            for asked in (core_mhz, self.auto)
        )
        return time / auto_s - 1, energy / auto_j - 1

    def _lost(self, asked: Floats) -> Floats:
        return np.asarray(1.0 + 0.05 * (asked / self.ran(asked) - 1.0))

    def ran(self, core_mhz: Floats) -> Floats:
        """Return the clocks that the cap leaves."""
        for ceiling in np.arange(1900.0, 0.0, -1.0):
            times, energies = self._costs(ran := np.minimum(core_mhz, ceiling))
            if energies.sum() <= self._limit_w * times.sum():
                break
        return ran


def _mhz(learner: Learner, choice: Ints) -> Floats:
    return np.array([_AUTO_MHZ if at < 0 else learner.core_mhz[at] for at in choice], dtype=float)


def _learn(
    world: World, learner: Learner, most: int = 700, until: LearningStage = LearningStage.HELD
) -> list[tuple[LearningStage, Floats]]:
    """Run blocks up to a stage; return that after each, and the clocks of its pieces."""
    ran = list[tuple[LearningStage, Floats]]()
    while learner.stage is not until and len(ran) < most:
        mhz = _mhz(learner, learner.choice)[np.array(learner.segments)]
        learner.ended(world.block(mhz, at_auto=bool((learner.choice < 0).all())))
        ran.append((learner.stage, mhz))
    return ran


@pytest.mark.parametrize("budget", [0.01, 0.03])
@pytest.mark.parametrize("bound", [0.15, 0.5])
def test_one_clock_is_learned_as_good_as_the_best(bound: float, budget: float) -> None:
    shares = []
    for seed in range(2):
        world = World(bound, seed=seed)
        learner = Learner(LISTED, budget=budget, seed=seed)
        lost = [world.true(mhz)[0] for _, mhz in _learn(world, learner)]

        saved = [world.true(np.array([float(mhz)])) for mhz in LISTED if mhz >= 0.5 * _AUTO_MHZ]
        best = min(energy for time, energy in saved if time <= budget)
        assert learner.best is not None
        time, energy = world.true(_mhz(learner, learner.best))
        assert time <= budget + 0.003
        assert sum(lost) / len(lost) <= budget
        assert learner.saving is not None
        low, high = learner.saving[0].interval or (0.0, 0.0)
        assert high - low <= 0.0065
        assert low - 0.003 <= energy <= high + 0.003
        shares.append(energy / best)
    assert sum(shares) / len(shares) >= 0.8


def test_segments_are_learned_to_take_clocks_of_their_own() -> None:
    """One that memory bounds goes low, one that the core bounds stays fast."""
    world = World(0.05, 0.95)
    learner = Learner(LISTED, budget=0.01, kinds=("memory", "core"))
    learner.least_s = 0.05
    _learn(world, learner)

    assert learner.best is not None
    low, high = _mhz(learner, learner.best)
    assert low < high
    time, energy = world.true(np.array([low, high]))
    fixed = [world.true(np.full(2, float(mhz))) for mhz in LISTED if mhz >= 0.5 * _AUTO_MHZ]
    assert energy < min(each for took, each in fixed if took <= 0.01) - 0.01
    assert time <= 0.015


def test_nothing_is_claimed_where_clocks_change_nothing() -> None:
    """A/A: of boards that draw the same at every clock one in forty seems to save."""
    claims = 0
    for seed in range(1000, 1008):
        world = World(0.0, static=1.0, seed=seed)
        learner = Learner(LISTED, budget=0.01, seed=seed)
        _learn(world, learner)
        claims += learner.best is not None
    assert claims <= 1


@pytest.mark.parametrize("saves", ["saves", ""])
def test_what_an_earlier_run_held_is_tried_first_and_learned_anew_where_it_saves_nothing(
    saves: str,
) -> None:
    world = World(0.05, 0.95)
    learner = Learner(LISTED, budget=0.01, kinds=("memory", "core"))
    learner.least_s, learner.held_before = 0.05, (1500, 1890) if saves else (1905, 1905)
    stages = [stage for stage, _ in _learn(world, learner, 400)]
    assert (LearningStage.ONE_CLOCK in stages) == (not saves)
    assert stages[2] is LearningStage.TRIAL
    assert learner.stage is LearningStage.HELD
    assert learner.best is not None
    low, high = learner.of_pieces(learner.best)
    assert low < 1600 < high
    assert not saves or (low, high) == (1500, 1890)


@pytest.mark.parametrize("times", [2, 3])
def test_blocks_of_a_trial_that_are_slow_once_in_a_row_are_taken_for_chance(times: int) -> None:
    world, learner = World(0.15), Learner(LISTED, budget=0.01)
    learner.held_before = (1800,)
    _learn(world, learner, until=LearningStage.TRIAL)
    slow, left = world.block(np.full(1, 1500.0), at_auto=False), 0
    while left < times:
        at_auto = bool(learner.choice[0] < 0)
        learner.ended(replace(slow, at_auto=at_auto), was_left=not at_auto)
        left += not at_auto
    assert (learner.stage is LearningStage.TRIAL) == (times == 2)


def test_what_a_trial_found_stays_known_of_its_clocks_while_others_are_tried() -> None:
    world, learner = World(0.15), Learner(LISTED, budget=0.01)
    learner.held_before = (1800,)
    while learner.saving is None:
        _learn(world, learner, most=learner.blocks + 1)
    while learner.stage is LearningStage.TRIAL:
        at_auto = bool(learner.choice[0] < 0)
        block = world.block(_mhz(learner, learner.choice), at_auto=at_auto)
        learner.ended(block, was_left=not at_auto)
    _learn(world, learner, most=20, until=LearningStage.TRIAL)
    assert learner.judged is not None
    assert learner.of_pieces(learner.judged) == (1800,)


def test_an_hour_later_the_saving_is_measured_anew() -> None:
    world = World(0.15)
    learner = Learner(LISTED, budget=0.01)
    _learn(world, learner)
    block = world.block(_mhz(learner, learner.choice), at_auto=False)
    for _ in range(int(3600 / (block.steps * block.time_s)) + 1):
        learner.ended(block)
        if learner.stage is LearningStage.TRIAL:
            break
    assert (learner.choice < 0).all()
    assert learner.stage is LearningStage.TRIAL


def test_unknown_energies_end_in_no_claim() -> None:
    world = World(0.15)
    learner = Learner(LISTED, budget=0.01)
    for number in range(700):
        mhz = _mhz(learner, learner.choice)
        block = world.block(mhz, at_auto=bool((learner.choice < 0).all()))
        learner.ended(block if number < 20 else replace(block, energy_j=None))
    assert learner.stage is LearningStage.HELD
    assert learner.saving is None
    assert (learner.choice < 0).all()


def test_under_a_power_cap_a_segment_may_run_faster_than_at_auto() -> None:
    """At auto the cap lowers both alike; where one goes low, it leaves the other more."""
    world = Capped(0.05, 0.95, limit_w=230.0)
    learner = Learner(LISTED, budget=0.01, kinds=("memory", "core"))
    learner.least_s = 0.05
    _learn(world, learner)

    assert learner.best is not None
    low, high = _mhz(learner, learner.best)
    assert low < 1500 < world.auto_mhz < high
    time, energy = world.true(np.array([low, high]))
    assert time <= 0.013
    assert energy < -0.05
    assert world.ran(np.array([low, high])).tolist() == [low, high]


@pytest.mark.parametrize("segments", [1, 2])
def test_only_segments_are_tried_above_auto(segments: int) -> None:
    """A lock above it for the whole step changes nothing."""
    world = Capped(*(0.05, 0.95)[-segments:], limit_w=200.0)
    learner = Learner(LISTED, budget=0.01, kinds=tuple(range(segments)))
    learner.least_s = 0.05
    ran = _learn(world, learner, 100)
    highest = max(float(mhz.max()) for _, mhz in ran if (mhz != _AUTO_MHZ).all())
    assert (highest > world.auto_mhz + 15.0) == (segments == 2)


@pytest.mark.parametrize("is_capped", [True, False])
def test_a_choice_is_known_as_it_ran_whatever_its_segments_say(*, is_capped: bool) -> None:
    """It takes 3 % longer than the sum of its segments; one near it is expected to as well."""
    auto = World(0.3, 0.6).block(np.full(2, _AUTO_MHZ), at_auto=True)
    response = Response(LISTED[90:], auto)
    choices, said_s = np.array([[20, 15], [20, 16]]), response.expected()[0]
    before_s, before_j = response.sums(choices, response.expected())
    ran = replace(
        auto,
        at_auto=False,
        core_mhz=response.core_mhz[choices[0]],
        times_s=1.03 / 2 * before_s[0] * np.ones(2),
        energy_j=float(0.98 * before_j[0]),
        is_capped=is_capped,
    )
    for _ in range(8):
        response.learn(ran, np.full(2, 0.002), 0.004)
    after_s, after_j = response.sums(choices, response.expected())
    assert after_s[0] == pytest.approx(1.03 * before_s[0], rel=0.003)
    assert after_j[0] == pytest.approx(0.98 * before_j[0], rel=0.01)
    assert after_s[1] > 1.01 * before_s[1]
    assert (response.expected()[0] == said_s).all() == is_capped


def test_a_block_moves_what_is_expected_and_its_error() -> None:
    auto = World(0.5).block(np.array([_AUTO_MHZ]), at_auto=True)
    response = Response((1500, 1700, 1900), auto)
    before_s, _ = response.expected()
    slow = BlockReading(
        at_auto=False,
        core_mhz=np.array([1500.0]),
        times_s=auto.times_s * 1.2,
        energy_j=auto.energy_j,
        steps=10,
    )
    response.learn(slow, np.full(len(slow.times_s), 0.002), 0.004)
    after_s, after_j = response.expected()
    assert after_s[0, 0] / auto.times_s[0] == pytest.approx(1.2, abs=0.01)
    assert after_s[0, 1] > 0.9 * before_s[0, 1]
    assert after_j[0, 0] == pytest.approx(auto.energy_j, rel=0.03)
