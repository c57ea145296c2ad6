"""Boards of one GPU model fitted together: what they share, and in what each differs.

Kernels and most constants are the model's. A board differs from it in a few ways: log cost on
board b is log cost on the model + Σ x_bw·s_w·d_w, where d_w is how the cost moves with a way and
s_w how far boards differ in it. The x are errors that all rows of a board have in common, with a
normal prior of size 1. The sizes s are learned from the boards, with a prior worth two boards more:
a scaled inverse-χ², so that what is expected of a board nobody measured has Student's t.

What a board's power sensor shows too much or too little (±5 %) it shows of auto and of a plan
alike, so it cancels in what is saved. Where the cap held kernels, all powers are taken over what
the board shows there: a gain is then no way in which boards differ, whatever the cap acts on.

Shape letters: B boards, W ways, R rows, K kernels, S settings, H errors in common; a leading 2 is
time and power.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from scipy.special import stdtrit

from underclock.arrays import Floats, Ints
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.estimate import KnownFit, estimate
from underclock.core.model.fitting import MOST_ROWS, fitted, start_of, temperature_of
from underclock.core.model.most_likely import FittedModel
from underclock.core.model.parameters import Parameters, Points, Shared, predicted_rows
from underclock.core.model.predicted_change import ONE_SIDED
from underclock.core.model.predictive import clocks_of
from underclock.core.model.row_runs import sample_weights
from underclock.core.model.rows import OF_ROWS, Rows
from underclock.core.model.sample_rows import CannotFitError, rows_of
from underclock.core.model.sample_sets import seen_cap
from underclock.core.step.cap import PowerCap, driver_says, settle
from underclock.core.step.drawn_costs import DrawnCosts, normals
from underclock.core.step.table import CostTable
from underclock.core.step.under_cap import cap_of
from underclock.errors import DataError
from underclock.physics.derivatives import BY_GPU, BY_KERNEL
from underclock.records import Evidence, SampleSet

# In words, and how far boards are expected to differ before any was measured, as a logarithm. Of
# the gain: within 5 % either way (Yang et al., SC'24). Sixty A100s of one machine differ by 8 % in
# what they do under the cap (Sinha et al., SC'22): as a deviation 2 %, which voltage, leakage and
# memory make together. None of them is measured by itself: sizes are learned.
WAYS = (
    ("what its sensor shows", 0.05 / math.sqrt(3.0)),
    ("time of every cycle", 0.003),
    ("leakage", 0.15),
    ("core voltage", 0.01),
    ("clock from which voltage rises", 0.01),
    ("power of memory", 0.03),
)
_EXPECTED = np.array([size for _, size in WAYS])
_CAP_READ = 0.003  # how well a few windows at the cap show what a sensor shows there
_OF_PLANS = slice(1, None)  # gains cancel
_AS_BOARDS = 2.0  # what the prior of a size counts for
_SEED = 29  # of the boards drawn
_TURNS = 60  # of sizes and deviations, which depend on one another


def by_way(parameters: Parameters, at: Points) -> Floats:
    """Return how log time and power move with each way in which boards differ. Shape (2, R, W)."""
    costs = predicted_rows(parameters, at).costs
    by_gpu, by_kernel = costs.by_gpu(), costs.by_kernel()
    gpu = {name: by_gpu[..., column] for column, name in enumerate(BY_GPU)}
    work = by_kernel[..., BY_KERNEL.index("work_j_per_v2")]
    points = len(parameters.family.base.mem_points_mhz)
    nothing = np.zeros_like(work)
    one = np.ones(work.shape[1])
    squares = gpu["clock_w_per_ghz_v2"] + work
    # An offset, so it counts for less where the voltage is higher.
    volts = parameters.family.base.floor_v / costs.at.volts
    voltage = volts * (3.0 * gpu["leak_w_per_v3"] + 2.0 * squares)
    return np.stack(
        [
            np.stack([nothing[0], one]),
            np.stack([one, nothing[0]]),
            gpu["leak_w_per_v3"],
            np.stack([nothing[0], voltage[1]]),
            gpu["knee_mhz"],
            by_gpu[..., len(BY_GPU) : len(BY_GPU) + points].sum(axis=-1),
        ],
        axis=-1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedBoards:
    """Boards fitted together.

    Attributes:
        sample_sets: Of each board, in watts of the first.
        weights: How much each of their samples counts. Shapes (2, N).
        sizes: How far each board may differ in each way, as logarithms. Shape (B, W).
    """

    sample_sets: tuple[SampleSet, ...]
    weights: tuple[Floats, ...]
    rows: Rows
    model: FittedModel
    sizes: Floats

    def board(self, number: int) -> CostEstimate:
        """Return what everything costs on one of the boards."""
        return self._on(_pooled(self.sample_sets, [number]), _of_one(number, len(self.sample_sets)))

    def any_board(self) -> CostEstimate:
        """Return what everything costs on a board nobody measured.

        As on the mean of the boards measured, and as unsure as boards differ from that.
        """
        boards = len(self.sample_sets)
        share = np.full(boards, 1.0 / boards)
        known = self._on(self.pooled, share)
        own = [self.board(number).table for number in range(boards)]
        levelled, limit_w = _levelled(self.pooled, self.sample_sets, own, known.table)
        rows = dataclasses.replace(self.rows, limit_w=limit_w)
        estimated = self._on(levelled, share, rows)
        return dataclasses.replace(estimated, boards=self._drawn(estimated))

    @property
    def pooled(self) -> SampleSet:
        """Samples of all boards as one set."""
        return _pooled(self.sample_sets, range(len(self.sample_sets)))

    @property
    def expected_sizes(self) -> Floats:
        """How far a board nobody measured may be from the mean of those measured. Shape (W,).

        As a deviation of a normal distribution that has as much beyond its 95 % as Student's t.
        """
        boards = len(self.sample_sets)
        wider = float(stdtrit(_AS_BOARDS + boards, 0.95)) / ONE_SIDED
        sizes: Floats = wider * math.sqrt(1.0 + 1.0 / boards) * self.sizes[0]
        return sizes

    def _on(self, sample_set: SampleSet, share: Floats, rows: Rows | None = None) -> CostEstimate:
        def by_common(parameters: Parameters, at: Points) -> Floats:
            ways = by_way(parameters, at)
            of_boards = share[:, None] * self.sizes * ways[:, :, None, :]
            of_boards = of_boards.reshape(*ways.shape[:2], -1)
            company = np.zeros((*ways.shape[:2], parameters.family.common - of_boards.shape[-1]))
            return np.concatenate([company, of_boards], axis=-1)

        kernels = len(sample_set.kernels)
        estimated = estimate(
            sample_set,
            known=KnownFit(
                rows=(rows or self.rows).of_first(kernels),
                model=self.model.of_first(kernels),
                weights=np.concatenate(self.weights, axis=1),
                by_common=by_common,
            ),
        )
        if estimated.table.power_cap is None:
            raise DataError(
                "samples of the boards tell of too few kernels what they take at boost, so nobody "
                "knows what the step takes on another",
                hint="go on measuring one of the boards with `underclock measure`",
            )
        return estimated

    def _drawn(self, estimated: CostEstimate) -> DrawnCosts:
        """Draw boards of the model."""
        posterior = estimated.posterior
        core_mhz, mem_mhz = clocks_of(self.rows, posterior.settings)
        shape = posterior.log_s.shape
        kernels = np.repeat(np.arange(shape[0]), shape[1])
        at = Points(
            kernel=kernels,
            core_mhz=np.tile(core_mhz, shape[0]),
            mem_mhz=np.tile(mem_mhz, shape[0]),
            temperature_c=np.full(len(kernels), _steady_c(self.sample_sets)),
        )
        moves = (by_way(self.model.parameters, at) * self.expected_sizes)[..., _OF_PLANS]
        moves = np.moveaxis(moves.reshape(2, *shape, -1), -1, 0)
        draws = normals(moves[0, 0].size, len(moves), seed=_SEED)
        return DrawnCosts.of(estimated.table, np.tensordot(draws, moves, axes=1))


def fit_boards(sample_sets: Sequence[SampleSet], known: FittedBoards | None = None) -> FittedBoards:
    """Fit boards of one model together.

    Args:
        sample_sets: Of each board: of one step, on GPUs that `check_alike` takes for alike. The
            powers of all are told as the first shows them.
        known: Boards that tell how far boards differ; by default these do.
    """
    caps_w = [seen_cap(each)[0] for each in sample_sets]
    sets = tuple(_in_watts_of(sample_sets, caps_w))
    weights = tuple(sample_weights(each) for each in sets)
    rows, board = _joined(_rows_of_each(sets, weights))
    family = Shared(start_of(rows, [s for one in sets for s in one.settings]))
    most = MOST_ROWS * len(sets)
    if known is None:
        parameters = fitted(rows, family, most_rows=most).parameters
    else:
        parameters = known.model.parameters
    ways = by_way(parameters, Points.of(rows))
    sizes = _sizes_of(_EXPECTED if known is None else known.sizes[0], caps_w)
    model = fitted(_with_boards(rows, board, ways, sizes), family, most_rows=most)
    if known is None:
        sizes = _sizes_of(likeliest_sizes(model, sizes), caps_w)
        model = fitted(_with_boards(rows, board, ways, sizes), family, most_rows=most)
    return FittedBoards(
        sample_sets=sets,
        weights=weights,
        rows=_with_boards(rows, board, ways, sizes),
        model=model,
        sizes=sizes,
    )


def check_alike(sample_sets: Sequence[SampleSet]) -> None:
    """Refuse boards that cannot be fitted together.

    Raises:
        DataError: There is none, one is there twice, or they are of two models, drivers, limits or
            steps; or samples do not tell what the step takes as it runs.
    """
    if not sample_sets:
        raise DataError("there are no boards", hint="measure the step on one, better on four")
    first = sample_sets[0]
    for number, other in enumerate(sample_sets, 1):
        if other.evidence is Evidence.REPLAYED or not (other.in_situ and other.order):
            raise DataError(
                f"board {number}: the step was not run whole, so nobody knows what its cap makes "
                "of it",
                hint="measure a step on each board with `underclock measure`",
            )
        if unlike := first.unlike(other):
            noun, one, own = unlike
            raise DataError(
                f"boards 1 and {number} are of two {noun}: {one} and {own}",
                hint="boards are fitted together where only the boards differ",
            )
        for before, earlier in enumerate(sample_sets[: number - 1], 1):
            if earlier.windows == other.windows:
                raise DataError(
                    f"boards {before} and {number} have the same samples",
                    hint="name each file once",
                )
            if earlier.gpu.uuid is not None and earlier.gpu.uuid == other.gpu.uuid:
                raise DataError(
                    f"boards {before} and {number} are one: {other.gpu.uuid}",
                    hint="name one file of each board: twice it would count as two that are alike",
                )


def _in_watts_of(sample_sets: Sequence[SampleSet], cap_w: Sequence[float]) -> list[SampleSet]:
    """Return samples in watts as the first board shows them, where the cap shows how each does.

    Args:
        cap_w: Power that held samples of each show; ``inf`` where none was held.
    """
    scaled = []
    for each, shown_w in zip(sample_sets, cap_w, strict=True):
        gain = cap_w[0] / shown_w if math.isfinite(cap_w[0]) and math.isfinite(shown_w) else 1.0
        windows = [
            msgspec.structs.replace(window, energy_j=gain * window.energy_j)
            for window in each.windows
        ]
        scaled.append(msgspec.structs.replace(each, windows=tuple(windows)))
    return scaled


def _pooled(sample_sets: Sequence[SampleSet], steps_of: Sequence[int]) -> SampleSet:
    """Return kernels by themselves on all boards, and the step on some."""
    own = sample_sets[steps_of[0]]
    samples = [window for each in sample_sets for window in each.samples]
    steps = [window for number in steps_of for window in sample_sets[number].in_situ]
    every = dict.fromkeys(clocks for each in sample_sets for clocks in each.settings)
    return msgspec.structs.replace(own, windows=(*samples, *steps), settings=tuple(every))


def _levelled(
    pooled: SampleSet, sample_sets: Sequence[SampleSet], own: Sequence[CostTable], mean: CostTable
) -> tuple[SampleSet, float]:
    """Return steps as the mean board would have taken them, and the limit that it is held at.

    A board that the cap holds at auto is not the mean board, nor is the mean of boards of which
    some are held. What is the same on all is the limit, and how far the model is off.

    Args:
        own: What everything costs on each board.
        mean: On the mean board, under any cap.
    """
    held = [
        any(driver_says(window.throttle_reasons) for window in each.in_situ) for each in sample_sets
    ]
    limits_w = [cap_of(table).limit_w for table, is_held in zip(own, held, strict=True) if is_held]
    limit_w = float(np.mean(limits_w or [cap_of(table).limit_w for table in own]))
    cap = dataclasses.replace(cap_of(mean), limit_w=limit_w)
    mean_s, mean_j = _at_auto(cap, mean)
    steps = []
    for each, table in zip(sample_sets, own, strict=True):
        own_s, own_j = _at_auto(cap_of(table), table)
        steps += [
            msgspec.structs.replace(
                window.untimed(),
                time_s=window.time_s * mean_s / own_s,
                energy_j=window.energy_j * mean_j / own_j,
                throttle_reasons=None,
            )
            for window in each.in_situ
        ]
    return msgspec.structs.replace(pooled, windows=(*pooled.samples, *steps)), limit_w


def _at_auto(cap: PowerCap, table: CostTable) -> tuple[float, float]:
    """Return what the step takes at auto by the model: time in s and energy in J."""
    settled = settle(cap, table.launches, np.full(len(cap.order), cap.boost))
    return float(settled.time_s.sum()), float(settled.energy_j.sum())


def _of_one(number: int, boards: int) -> Floats:
    share: Floats = np.eye(boards)[number]
    return share


def _steady_c(sample_sets: Sequence[SampleSet]) -> float:
    return float(np.median([temperature_of(each) for each in sample_sets]))


def _rows_of_each(sample_sets: Sequence[SampleSet], weights: Sequence[Floats]) -> tuple[Rows, ...]:
    """Return the rows of each board; none of one whose samples tell nothing yet.

    Raises:
        CannotFitError: No board's samples tell anything.
    """
    known: dict[int, Rows] = {}
    for number, (one, counts) in enumerate(zip(sample_sets, weights, strict=True)):
        try:
            known[number] = rows_of(one, weights=counts)
        except CannotFitError:
            if number == len(sample_sets) - 1 and not known:
                raise
    some = next(iter(known.values()))
    nothing = {name: getattr(some, name)[..., :0] for name in OF_ROWS}
    empty = dataclasses.replace(some, **nothing, common=None, apart=None, idle=(), step=())
    return tuple(known.get(number, empty) for number in range(len(sample_sets)))


def _joined(each: Sequence[Rows]) -> tuple[Rows, Ints]:
    """Return the rows of all boards as rows of the same kernels, and which board each is of."""
    most = max(each, key=lambda rows: len(rows.names))
    order = np.argsort(np.concatenate([rows.kernel for rows in each]), kind="stable")
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(rows, name) for rows in each], axis=-1)[..., order]
        for name in OF_ROWS
    }
    board = np.repeat(np.arange(len(each)), [len(rows.kernel) for rows in each])[order]
    errors = np.cumsum([0, *(rows.by_common.shape[2] for rows in each)])
    common = np.zeros((2, len(order), errors[-1]))
    for b, rows in enumerate(each):
        common[:, board == b, errors[b] : errors[b + 1]] = rows.by_common
    aparts = [np.zeros(len(r.kernel)) if r.apart is None else r.apart for r in each]
    limits = [rows.limit_w for rows in each if math.isfinite(rows.limit_w)]
    return dataclasses.replace(
        most,
        **columns,
        common=common,
        apart=np.concatenate(aparts)[order] if any(r.apart is not None for r in each) else None,
        mem_points_mhz=np.unique(np.concatenate([rows.mem_points_mhz for rows in each])),
        limit_w=float(np.median(limits)) if limits else math.inf,
        ceiling_mhz=min(rows.ceiling_mhz for rows in each),
        peak_w=min(rows.peak_w for rows in each),
        idle=tuple(idle for rows in each for idle in rows.idle),
        step=tuple(draw for rows in each for draw in rows.step),
    ), board


def _sizes_of(sizes: Floats, caps_w: Sequence[float]) -> Floats:
    """Return the sizes for each board: what gains leave over is less where caps were seen.

    Args:
        sizes: How far boards differ. Shape (W,).

    Returns:
        Shape (B, W).
    """
    every = np.tile(sizes, (len(caps_w), 1))
    every[:, 0] = np.where(np.isfinite(caps_w), _CAP_READ, _EXPECTED[0])
    return every


def _with_boards(rows: Rows, board: Ints, ways: Floats, sizes: Floats) -> Rows:
    """Return rows that have the deviations of their board in common.

    Args:
        board: Of each row. Shape (R,).
        ways: How rows move with each way. Shape (2, R, W).
        sizes: How far each board may differ. Shape (B, W).
    """
    mine = np.eye(len(sizes))[board][:, :, None] * sizes
    of_boards = mine * ways[:, :, None, :]
    common = np.concatenate([rows.by_common, of_boards.reshape(*ways.shape[:2], -1)], axis=2)
    return dataclasses.replace(rows, common=common)


def likeliest_sizes(model: FittedModel, sizes: Floats) -> Floats:
    """Return how far boards differ in each way, by the deviations of those that were fitted.

    Expectation and maximisation in turn: deviations are integrated out, as a normal distribution
    around where they are.

    Args:
        sizes: Under which the model was fitted. Shape (B, W).

    Returns:
        Shape (W,).
    """
    boards = len(sizes)
    tail = slice(len(model.parameters.shared) - sizes.size, None)
    # In units of the sizes under which they were fitted, all have one prior, of size 1.
    precision = np.linalg.inv(model.shared_cov[tail, tail])
    # What rows tell can be no less than nothing, but by rounding: of a way that they hardly tell.
    values, vectors = np.linalg.eigh(precision - np.eye(len(precision)))
    told = (vectors * np.maximum(values, 0.0)) @ vectors.T
    side = (told + np.eye(len(told))) @ model.parameters.shared[tail]
    ratio = np.ones(sizes.shape[1])
    expected = (_EXPECTED / sizes[0]) ** 2
    for _ in range(_TURNS):
        left = np.linalg.inv(told + np.diag(np.tile(ratio**-2.0, boards)))
        away2 = ((left @ side) ** 2 + np.diag(left)).reshape(sizes.shape).sum(axis=0)
        ratio = np.sqrt((_AS_BOARDS * expected + away2) / (_AS_BOARDS + boards))
        ratio[0] = 1.0  # gains are not learned
    likeliest: Floats = sizes[0] * ratio
    return likeliest
