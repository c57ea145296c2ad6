"""What a kernel of a size that was not measured is expected to be, from its role and from its kind.

Of one kind, a parameter p of the physics goes with FLOPs F and bytes B as

    p = (a·F^q + b·B^q)^(1/q),    a, b >= 0,

where q is 1 for an energy and sharp for cycles, which the scarcer of two units decides. Kernels
deviate from that with heavy tails, so that one odd kernel does not bend what is said of the rest.
What a kernel deviates by it keeps at another size, but for what sizes alone change: how many waves
of blocks there are, what fits into a cache. Of the time that no clock changes a launch's own does
not grow with the work, and the rest does: it is latency of the same work.

Shape letters: K kernels, N new ones, P parameters of a kernel.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.parameters import CORE, DRAM, FIXED, PER_KERNEL, WORK

_SHARP = {CORE: 3.4, DRAM: 1.0, WORK: 1.0}  # of cycles as sharp as parts of a time join
_LENGTH = 6.0  # of log size, over which what a size changes is another's no more
# And of the log length of a tensor's rows: a product, or a sum over rows, is laid out by it. On two
# pairs of H200 steps 83 to 91 % of large kernels' times lay inside their intervals without it (74 %
# in a smaller model), 91 to 93 % with it (80 %).
_LENGTH_OF_ROWS = 1.0
_OF_SIZE = 0.4  # deviation by which sizes of one role differ when they are far apart
# By which all kernels of a kind do together, at all clocks alike: at most, and over what each
# deviates by from their line.
_OF_SIZES, _OVER_OWN = 0.2, 2.0
_LEAST = np.array([0.004, 0.004, 0.3, 0.004])  # deviations of a kind: no two shapes run quite alike
FEWEST = 4
"""Kernels of a kind from which it is known how cost goes with their work."""
_FEW = np.array([0.5, 0.5, 0.7, 0.5])  # deviations of a kind of which there are too few to tell
# The same kernel takes up to 4 % longer in one step of an H200 than in another (measured: it meets
# other data in the cache), at all clocks alike.
_OF_STEP = 0.03
_SCALED = np.array([1.0, 1.0, 1.0, 0.0])
_BOTH = np.column_stack([_SCALED, 1.0 - _SCALED])  # time as a whole, and work
_TIME_AND_WORK = _BOTH @ _BOTH.T
_NOTHING = 1.0  # deviation of a kernel of which not even a kind is known
_TAILS = 3.0  # degrees of freedom of Student's t, of how kernels deviate from their kind
_PER_KIND = PER_KERNEL + 2  # errors that all kernels of a kind have in common
_TINY = 1e-9
_ODDS, _GRID, _ZOOMS = 5.0, 41, 3  # of FLOPs against bytes, each over its greatest
_ROUNDS = 12  # of a law and of how kernels deviate from it, each by the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Parameters of new kernels."""

    parameters: Floats  # (N, P)
    by_source: Floats  # how they move with those of their sources, (N, P, P)
    cov: Floats  # what is unsure of them besides what is unsure of their sources, (N, P, P)
    is_told: Bools  # of which something like them was measured, (N,)
    kept: Floats  # how much of what its source's rows say beyond the physics holds for each, (N,)
    # how they move with what is unsure of their kinds, each over its deviation: all kernels of a
    # kind follow the same line. Q of them, (N, P, Q)
    by_kind: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKernels:
    """Kernels that were measured, and how sure their parameters are."""

    kinds: Ints  # what each mostly does, as a small number, (K,)
    work: Floats  # FLOPs and bytes, (2, K)
    parameters: Floats  # (K, P)
    cov: Floats  # of these, (K, P, P)

    def of(self, chosen: Bools) -> "KnownKernels":
        """Return some of them."""
        return KnownKernels(
            kinds=self.kinds[chosen],
            work=self.work[:, chosen],
            parameters=self.parameters[chosen],
            cov=self.cov[chosen],
        )


def unseen(
    known: KnownKernels,
    usable: Bools,
    kinds: Ints,
    work: Floats,
    source: Ints,
    same: Bools,
    rows_apart: Floats | None = None,
) -> Unseen:
    """Say what new kernels are expected to be.

    Args:
        usable: Which known kernels tell anything. Shape (K,).
        kinds: Of the new kernels; -1 where nothing is like them. Shape (N,).
        work: FLOPs and bytes of the new kernels. Shape (2, N).
        source: The known kernel of each one's role; -1 without any. Shape (N,).
        same: Which are that very kernel. Shape (N,).
        rows_apart: How far the rows of its tensors are from its source's in length, as a logarithm;
            ``None`` where tensors are not known. Shape (N,).
    """
    count, one = len(kinds), np.eye(PER_KERNEL)
    rows_apart = np.zeros(count) if rows_apart is None else rows_apart
    made = Unseen(
        parameters=np.zeros((count, PER_KERNEL)),
        by_source=np.zeros((count, PER_KERNEL, PER_KERNEL)),
        cov=np.zeros((count, PER_KERNEL, PER_KERNEL)),
        is_told=same | (kinds >= 0),
        kept=np.zeros(count),
        by_kind=np.zeros((count, PER_KERNEL, _PER_KIND * len(set(kinds.tolist()) - {-1}))),
    )
    measured = known.of(usable)
    # The one with least to compute shows best what any launch takes.
    launch = float(measured.parameters[np.argmin(measured.parameters[:, CORE]), FIXED])
    laws = {
        kind: KindLaws(known.of(usable & (known.kinds == kind) & (known.work[1] > 0.0)), launch)
        for kind in set(kinds.tolist()) - {-1}
    }
    places = {kind: place for place, kind in enumerate(laws)}
    for n in range(count):
        k, kind = int(source[n]), int(kinds[n])
        made.cov[n] = _OF_STEP**2 * np.outer(_SCALED, _SCALED)
        if same[n]:
            made.parameters[n], made.by_source[n], made.kept[n] = known.parameters[k], one, 1.0
            continue
        if kind < 0 and k >= 0:  # of unknown size
            made.parameters[n], made.by_source[n] = known.parameters[k], one
            made.cov[n] = _NOTHING**2 * _TIME_AND_WORK
            continue
        if kind < 0:
            made.parameters[n] = np.median(measured.parameters, axis=0)
            made.cov[n] += np.diag(np.var(measured.parameters, axis=0) + _NOTHING**2)
            continue
        if k < 0:
            made.parameters[n] = laws[kind].expected(work[:, n])
            made.cov[n] += np.diag(laws[kind].own)
        else:
            of_rows = math.exp(-0.5 * (rows_apart[n] / _LENGTH_OF_ROWS) ** 2)
            # How much of what a size changes holds between two sizes.
            both = (known.work[:, k] > 0.0) & (work[:, n] > 0.0)
            apart2 = (np.log(work[both, n] / known.work[both, k]) ** 2).max(initial=0.0)
            made.kept[n] = of_rows * math.exp(-0.5 * (float(apart2) / _LENGTH**2))
            of_source = known.parameters[k], known.cov[k], known.work[:, k]
            resized = laws[kind].resized(*of_source, work[:, n], made.kept[n])
            made.parameters[n], made.by_source[n] = resized[:2]
            made.cov[n] += resized[2]
            # A kind's own sizes do not tell what another layout does.
            made.cov[n] += (1.0 - of_rows**2) * _OF_SIZE**2 * _TIME_AND_WORK
        first = _PER_KIND * places[kind]
        line = (one - made.by_source[n]) * laws[kind].line
        sizes = math.sqrt(1.0 - made.kept[n] ** 2) * laws[kind].together
        if k >= 0:
            sizes = np.hypot(sizes, math.sqrt(1.0 - of_rows**2) * _OF_SIZES * _BOTH)
        made.by_kind[n, :, first : first + _PER_KIND] = np.column_stack([line, sizes])
    return made


class KindLaws:
    """Kernels of one kind, and what their work says of them.

    Attributes:
        own: By how much each deviates from what its work says, squared. Shape (P,).
        line: Standard deviation of what work says. Shape (P,).
    """

    def __init__(self, like: KnownKernels, launch: float) -> None:
        # ``launch`` is the logarithm of what a launch takes that nothing changes.
        self._launch, self._unit = launch, like.work.max(axis=1, initial=1.0)
        self._like, self.own, self.line = like, _FEW**2, np.zeros(PER_KERNEL)
        self._rates = {p: self._learned(p) for p in _SHARP}

    @property
    def together(self) -> Floats:
        """How sizes far apart differ, the same for all kernels: in time, in work. Shape (P, 2)."""
        most = np.minimum(_OF_SIZES, _OVER_OWN * np.sqrt(self.own))
        both: Floats = most[[CORE, WORK]] * _BOTH
        return both

    def expected(self, work: Floats) -> Floats:
        """Return the logarithms of parameters, as FLOPs and bytes alone say. Shape (P,)."""
        logs = np.full(PER_KERNEL, self._launch)
        for p, rates in self._rates.items():
            logs[p] = np.log(max(float(self._features(p, work) @ rates), _TINY)) / _SHARP[p]
        return logs

    def resized(
        self, source: Floats, cov: Floats, known: Floats, work: Floats, alike: float
    ) -> tuple[Floats, Floats, Floats]:
        """Return what a kernel of the role of a source is expected to be.

        Args:
            source: Parameters of the source, (P,), with covariances, (P, P).
            known: Its FLOPs and bytes; those of the new one are ``work``. Shapes (2,).
            alike: How much of what its size changes holds for the new size too.

        Returns:
            Parameters, (P,), how they move with the source's and what is unsure besides, (P, P).
        """
        before, now = self.expected(known), self.expected(work)
        away = source - before
        # How far an odd kernel is off shows how far such kernels are.
        own = self.own * (_TAILS + away**2 / (self.own + np.diag(cov))) / (_TAILS + 1.0)
        common = own - (1.0 - alike) * np.minimum(own, _OF_SIZE**2)
        some = np.ix_(list(_SHARP), list(_SHARP))
        by = np.zeros((PER_KERNEL, PER_KERNEL))
        # Of what the source deviates by, a part is its own, the rest what is unsure of it.
        by[some] = np.diag(common[some[1][0]]) @ np.linalg.inv((np.diag(own) + cov)[some])
        made = now + by @ away
        fixed_s, launch_s = np.exp(source[FIXED]), np.exp(min(source[FIXED], self._launch))
        grown = float(np.exp(made[CORE] - source[CORE]))
        made[FIXED] = np.log(launch_s + grown * (fixed_s - launch_s))
        by[FIXED, FIXED] = np.exp(source[FIXED] - made[FIXED]) * (grown if away[FIXED] > 0 else 1.0)
        left = np.diag(own) - by @ (np.diag(own) + cov) @ by.T
        left[FIXED], left[:, FIXED] = 0.0, 0.0
        left[FIXED, FIXED] = (1.0 - alike**2) * _OF_SIZE**2
        return made, by, left

    def _features(self, p: int, work: Floats) -> Floats:
        """Return what a parameter goes with, of work (2,) or (2, K). Shape (2,) or (K, 2)."""
        features: Floats = (work.T / self._unit) ** _SHARP[p]
        return features

    def _learned(self, p: int) -> Floats:
        """Learn what a parameter goes with, and how far kernels deviate from it. Shape (2,)."""
        like, unsure2 = self._like, self._like.cov[:, p, p]
        if not len(unsure2):
            return np.ones(2)  # of no kernel more is known than that work makes it longer
        features, width = self._features(p, like.work), _ODDS * _SHARP[p]
        odds = np.array([-math.inf])
        if features[:, 0].any():
            odds = np.concatenate([odds, np.linspace(-width, width, _GRID), [math.inf]])
        for _ in range(_ZOOMS):
            shares = np.stack([expit(odds), expit(-odds)])
            law = np.log(np.maximum(features @ shares, _TINY)) / _SHARP[p]
            middle, own, precision, likelihood = _student(
                like.parameters[:, [p]] - law, unsure2[:, None], float(_FEW[p])
            )
            best = int(np.argmax(likelihood))
            if not math.isfinite(odds[best]):
                break
            width *= 2.0 / _GRID
            odds = odds[best] + width * np.linspace(-1.0, 1.0, _GRID)
        self.own[p] = max(float(own[best]), float(_LEAST[p]) ** 2)
        self.line[p] = float(precision[best]) ** -0.5
        rates: Floats = shares[:, best] * np.exp(_SHARP[p] * float(middle[best]))
        return rates


def _student(away: Floats, unsure2: Floats, few: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Fit Student's t to how far kernels are from laws, (K, M), by expectation and maximisation."""
    # Returned are middle, own variance, precision of the middle and log likelihood, (M,).
    count = len(away)
    own, middle = np.full(away.shape[1], few**2), np.median(away, axis=0)
    for _ in range(_ROUNDS):
        off2, spread2 = (away - middle) ** 2, unsure2 + own
        weights = (_TAILS + 1.0) / (_TAILS + off2 / spread2) / spread2
        middle = (weights * away).sum(axis=0) / weights.sum(axis=0)
        if count >= FEWEST:
            # What its own rows leave unsure of a kernel is no deviation.
            excess = weights * off2 * count / (count - 1.0) - unsure2 / spread2
            own = np.maximum((excess / spread2).sum(axis=0) / (spread2**-2).sum(axis=0), 0.0)
            own = np.maximum(own, _TINY)
    off2, spread2 = (away - middle) ** 2, unsure2 + own
    weights = (_TAILS + 1.0) / (_TAILS + off2 / spread2) / spread2
    tails = (_TAILS + 1.0) * np.log1p(off2 / spread2 / _TAILS)
    return middle, own, weights.sum(axis=0), -0.5 * (np.log(spread2) + tails).sum(axis=0)
