"""Boards of one model fitted together: what each has of its own, and what others may have."""

import dataclasses
import math
from typing import Any

import msgspec
import numpy as np
import pytest

from made_boards import KERNELS, ORDER, board_gpu, held_mhz, made_board, true_costs, true_step
from underclock.core.design.sample_value import Candidates, telling_shared
from underclock.core.model.boards import (
    WAYS,
    FittedBoards,
    check_alike,
    fit_boards,
    likeliest_sizes,
)
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.sample_rows import CannotFitError
from underclock.core.step.under_cap import cap_of
from underclock.errors import DataError
from underclock.records import Clocks, Evidence, SampleSet
from windows import having

_BOARDS: tuple[dict[str, Any], ...] = (
    {},
    {"leakage": 1.3},
    {"offset_v": 0.012, "gain": 1.05},
    {"leakage": 0.8, "gain": 0.96},
)
_NAMES = [name for name, _ in WAYS]
_PLAN = {f"k{i}": Clocks(core_mhz=1500 + 90 * (i // 3), mem_mhz=9251) for i in range(6)}


def _measured(number: int) -> SampleSet:
    return made_board(number, **_BOARDS[number])


@pytest.fixture(scope="module")
def fleet() -> FittedBoards:
    return fit_boards([_measured(number) for number in range(3)])


@pytest.fixture(scope="module")
def any_board(fleet: FittedBoards) -> CostEstimate:
    return fleet.any_board()


def _deviations(fitted: FittedBoards) -> dict[str, list[float]]:
    """Return how far each board is from the model in each way, as a logarithm."""
    own = fitted.model.parameters.shared[-fitted.sizes.size :].reshape(fitted.sizes.shape)
    return {name: (own * fitted.sizes)[:, w].tolist() for w, name in enumerate(_NAMES)}


def _truly(number: int, plan: dict[str, Clocks]) -> tuple[float, float]:
    """Return what a plan below the cap changes on a board, as physics says."""
    own = {name: each for name, each in _BOARDS[number].items() if name != "gain"}
    gpu = board_gpu(**own)
    each = [
        true_costs(gpu, f"k{k}", plan[f"k{k}"].core_mhz or 0, plan[f"k{k}"].mem_mhz or 0)
        for k in ORDER
    ]
    auto_s, auto_j = true_step(gpu, held_mhz(gpu))
    time_s, energy_j = math.fsum(s for s, _ in each), math.fsum(s * w for s, w in each)
    return time_s / auto_s - 1.0, energy_j / auto_j - 1.0


def _choice(found: CostEstimate, plan: dict[str, Clocks]) -> np.ndarray:
    return np.array([found.table.settings.index(plan[name]) for name in KERNELS])


@pytest.mark.untraced
def test_what_a_board_has_of_its_own_is_told_apart(fleet: FittedBoards) -> None:
    own = _deviations(fleet)
    leakage, voltage = own["leakage"], own["core voltage"]

    assert leakage[1] - leakage[0] == pytest.approx(math.log(1.3), abs=0.08)
    assert voltage[2] - voltage[0] == pytest.approx(0.012 / 0.75, abs=0.006)
    assert max(map(abs, own["time of every cycle"])) < 0.002
    # What sensors show is taken off by what they show at the cap.
    assert max(map(abs, own["what its sensor shows"])) < 0.005
    learned = dict(zip(_NAMES, fleet.sizes[0], strict=True))
    assert 0.05 < learned["leakage"] < 0.3
    assert learned["time of every cycle"] < 0.003


def test_ways_that_rows_tell_nothing_of_are_as_wide_as_before(fleet: FittedBoards) -> None:
    """By rounding a fit may know less of them than was known beforehand."""
    shared, count = fleet.model.parameters.shared.copy(), fleet.sizes.size
    shared[-count:], cov = 0.0, fleet.model.shared_cov.copy()
    cov[-count:, -count:] = 1.4 * np.eye(count)
    parameters = dataclasses.replace(fleet.model.parameters, shared=shared)
    told = dataclasses.replace(fleet.model, parameters=parameters, shared_cov=cov)

    sizes = likeliest_sizes(told, fleet.sizes)

    assert np.isfinite(sizes).all()
    assert (sizes[1:] > 0.9 * np.array([size for _, size in WAYS])[1:]).all()


def test_each_board_is_known_as_physics_says(fleet: FittedBoards) -> None:
    for number in range(3):
        found = fleet.board(number)
        change = found.predicted_change(_choice(found, _PLAN))
        time, energy = _truly(number, _PLAN)

        assert change.time_change == pytest.approx(time, abs=0.004)
        assert change.energy_change == pytest.approx(energy, abs=0.012)
        assert change.uneven is None
        assert found.table.warnings == ()


def test_a_board_nobody_measured_is_as_unsure_as_boards_differ(
    fleet: FittedBoards, any_board: CostEstimate
) -> None:
    choice = _choice(any_board, _PLAN)
    change, own = any_board.predicted_change(choice), fleet.board(0).predicted_change(choice)
    (earlier, later), (less, more) = change.intervals

    assert change.energy_spread > 2 * own.energy_spread
    assert own.intervals[0] == (-1.96 * own.time_spread, 1.96 * own.time_spread)
    for number in range(4):
        time, energy = _truly(number, _PLAN)
        assert earlier <= time - change.time_change <= later
        assert less <= energy - change.energy_change <= more
    nothing = any_board.predicted_change(np.full(len(KERNELS), any_board.table.baseline))
    assert (nothing.time_spread, nothing.energy_spread) == (0.0, 0.0)
    assert any_board.boards is not None
    auto = np.full(len(ORDER), any_board.table.baseline)
    assert not any_board.boards.changes(any_board.table, auto).any()
    assert any_board.predicted_schedule(auto).uneven == ((0.0, 0.0), (0.0, 0.0))


def test_boards_are_drawn_about_the_mean_board(any_board: CostEstimate) -> None:
    table, boards = any_board.table, any_board.boards
    assert boards is not None
    choice = _choice(any_board, _PLAN)[list(ORDER)]
    changes = boards.changes(table, choice)
    cost = any_board.predicted_schedule(choice)

    assert len(changes) == len(boards.launches) == 64
    assert changes.std(axis=0).min() > 0.001
    # Auto is held on boards that draw more, so locks below the cap are less of a loss there.
    assert np.median(changes[:, 0]) == pytest.approx(cost.time_change, abs=0.004)
    assert cap_of(table).limit_w < math.inf


@pytest.mark.untraced
def test_the_mean_board_is_not_the_mean_of_boards_of_which_some_are_held() -> None:
    free: dict[str, Any] = {"leakage": 0.2, "offset_v": -0.12}
    fitted = fit_boards([_measured(0), made_board(1, leakage=1.1), made_board(2, **free)])
    any_board = fitted.any_board()
    own = [fitted.board(number).table for number in range(3)]
    closures = [table.closure for table in (any_board.table, *own)]
    levels = [closure.energy for closure in closures if closure is not None]

    # The mean of the three boards' powers is no limit of anything.
    assert cap_of(any_board.table).limit_w == pytest.approx(
        np.mean([cap_of(table).limit_w for table in own[:2]])
    )
    assert levels[0] == pytest.approx(np.mean(levels[1:]), rel=1e-3)


@pytest.mark.untraced
def test_a_board_of_few_windows_leans_on_the_others(fleet: FittedBoards) -> None:
    others = fleet.sample_sets
    nothing = fit_boards([made_board(3, leakage=0.8, gain=0.96, cores=()), *others], fleet)
    few = fit_boards([made_board(3, leakage=0.8, gain=0.96, cores=(1200,)), *others], fleet)
    time, energy = _truly(3, _PLAN)
    spreads = []
    for fitted in (nothing, few):
        found = fitted.board(0)
        change = found.predicted_change(_choice(found, _PLAN))
        spreads.append(change.energy_spread)

        assert fitted.sizes[1] == pytest.approx(fleet.sizes[0])
        assert abs(change.time_change - time) < 0.004
        assert abs(change.energy_change - energy) < 3 * change.energy_spread
    assert spreads[1] < 0.6 * spreads[0]


def test_windows_are_chosen_that_tell_most_of_a_board(fleet: FittedBoards) -> None:
    own = made_board(3, leakage=0.8, cores=())
    found = fit_boards([own, *fleet.sample_sets], fleet).board(0)
    candidates = Candidates(
        posterior=found.posterior,
        counts=found.counts,
        auto_s=found.baseline.time_s,
        auto_j=found.baseline.own_j,
        measurable=found.measurable,
        looks=np.zeros_like(found.posterior.log_s),
    )
    planned = _choice(found, _PLAN)
    chosen = telling_shared(candidates, 300.0, planned, most=4, least=0.0)

    assert len({tuple(each) for each in chosen.tolist()}) == 4
    assert found.measurable[tuple(chosen.T)].all()
    nothing = dataclasses.replace(candidates, measurable=np.zeros_like(found.measurable))
    assert len(telling_shared(nothing, 300.0, planned, most=4, least=0.0)) == 0
    assert len(telling_shared(candidates, 300.0, planned, most=4, least=1.0)) == 0


def test_boards_that_tell_nothing_cannot_be_fitted() -> None:
    with pytest.raises(CannotFitError):
        fit_boards([made_board(1, cores=()), made_board(2, cores=())])


def test_a_step_of_a_kernel_that_no_board_tells_of_is_not_expected_on_another() -> None:
    boards = []
    for each in (_measured(0), _measured(1)):
        known = tuple(w for w in each.windows if w.kernel != "k0" or w.asked.is_auto)
        boards.append(msgspec.structs.replace(each, windows=known))
    with pytest.raises(DataError, match="too few kernels what they take at boost"):
        fit_boards(boards).any_board()


def test_boards_in_watts_of_their_own_where_no_cap_was_seen() -> None:
    free = [
        having(
            each,
            samples=[s for s in each.samples if not s.throttle_reasons],
        )
        for each in (_measured(0), _measured(2))
    ]
    fitted = fit_boards(free)
    # Nothing shows a sensor's gain at a cap, so that is as unsure as gains usually are.
    assert fitted.sizes[:, 0] == pytest.approx(0.05 / math.sqrt(3.0))
    gains = _deviations(fitted)["what its sensor shows"]

    assert fitted.sample_sets == tuple(free)
    assert gains[1] - gains[0] == pytest.approx(math.log(1.05), abs=0.02)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"workload": "other"}, "two steps: w and other"),
        ({"fingerprint": "f"}, "two captures of the step: None and f"),
        ({"evidence": Evidence.MEASURED}, "two kinds of evidence: simulated and measured"),
        ({"evidence": Evidence.REPLAYED}, "board 2: the step was not run whole"),
        ({"order": ()}, "board 2: the step was not run whole"),
    ],
)
def test_boards_of_unlike_samples_are_refused(change: dict[str, object], sentence: str) -> None:
    one, two = (made_board(number, cores=()) for number in (1, 2))
    with pytest.raises(DataError, match=sentence):
        check_alike([one, msgspec.structs.replace(two, **change)])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "H"}, "boards 1 and 2 are of two GPU models: G and H"),
        ({"driver": "580"}, "two drivers: None and 580"),
        ({"power_limit_w": 200.0}, "two power limits"),
        ({"uuid": "GPU-1"}, "boards 1 and 2 are one: GPU-1"),
    ],
)
def test_unlike_gpus_and_one_board_twice_are_refused(
    change: dict[str, object], sentence: str
) -> None:
    one, two = (made_board(number, cores=()) for number in (1, 2))
    other = msgspec.structs.replace(two, gpu=msgspec.structs.replace(two.gpu, **change))
    with pytest.raises(DataError, match=sentence):
        check_alike([one, other])


def test_no_board_and_one_file_twice_are_refused() -> None:
    one = made_board(1, cores=())
    unknown = msgspec.structs.replace(one, gpu=msgspec.structs.replace(one.gpu, uuid=None))
    other = msgspec.structs.replace(made_board(2, cores=()), gpu=unknown.gpu)

    check_alike([unknown, other])
    with pytest.raises(DataError, match="there are no boards"):
        check_alike([])
    with pytest.raises(DataError, match="boards 1 and 2 have the same samples"):
        check_alike([unknown, unknown])
