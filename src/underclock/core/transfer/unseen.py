"""What a kernel of a size nobody measured is expected to be, from its role and from its kind.

Of one kind, a parameter p of the physics goes with FLOPs F and bytes B as

    p = (a·F^q + b·B^q)^(1/q),    a, b >= 0,

where q is 1 for an energy and sharp for cycles, which the scarcer of two units decides. What a
kernel has beside that is its role's own, and carries over to another size of it the less the
farther the sizes are apart: its deviation is a Gaussian process of log F and log B. How far kernels
of a kind deviate is learned by leaving each of them out.

Shape letters: K kernels, N new ones, P parameters of a kernel.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from underclock.arrays import Bools, Floats, Ints
from underclock.core.model.parameters import CORE, DRAM, FIXED, WORK
from underclock.core.model.rows import PER_KERNEL

_SHARP = {CORE: 3.4, DRAM: 1.0, FIXED: 1.0, WORK: 1.0}  # of cycles as sharp as parts of a time join
_LENGTH = 3.0  # of log size, over which what is a role's own goes over into another's
_LEAST = np.array([0.004, 0.004, 0.3, 0.004])  # deviations of a kind: no two shapes run quite alike
FEWEST = 4
"""Kernels of a kind from which it is known how cost goes with their work."""
_FEW = np.array([0.5, 0.5, 0.7, 0.5])  # deviations of a kind of which there are too few to tell
_NOTHING = 1.0  # deviation of a kernel of which not even a kind tells
_FEW_ROUNDS = 3  # where kernels of a kind are nearly on a line
_TINY = 1e-9
_ROUNDS = 30  # of a variance, which its own weights depend on


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Parameters of new kernels.

    Attributes:
        parameters: Shape (N, P).
        by_source: How they move with those of their sources. Shape (N, P, P).
        cov: What is unsure of them beside what is unsure of their sources. Shape (N, P, P).
        kept: How much of what its source's rows say beyond the physics holds for each. Shape (N,).
        by_kind: How they move with what is unsure of their kinds, each over its deviation: all
            kernels of a kind are told by the same line. Q of them. Shape (N, P, Q).
    """

    parameters: Floats
    by_source: Floats
    cov: Floats
    kept: Floats
    by_kind: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKernels:
    """Kernels that were measured, and how sure their parameters are.

    Attributes:
        kinds: What each mostly does, as a small number. Shape (K,).
        work: FLOPs and bytes. Shape (2, K).
        parameters: Shape (K, P).
        cov: Of these. Shape (K, P, P).
    """

    kinds: Ints
    work: Floats
    parameters: Floats
    cov: Floats

    @property
    def variance(self) -> Floats:
        """Of each parameter. Shape (K, P)."""
        return np.diagonal(self.cov, axis1=1, axis2=2)

    def of(self, chosen: Bools) -> "KnownKernels":
        """Return some of them."""
        return KnownKernels(
            kinds=self.kinds[chosen],
            work=self.work[:, chosen],
            parameters=self.parameters[chosen],
            cov=self.cov[chosen],
        )

    def with_more(self, others: "KnownKernels") -> "KnownKernels":
        """Return them and others, as of one kind."""
        return KnownKernels(
            kinds=np.append(self.kinds, others.kinds),
            work=np.append(self.work, others.work, axis=1),
            parameters=np.append(self.parameters, others.parameters, axis=0),
            cov=np.append(self.cov, others.cov, axis=0),
        )


def unseen(
    known: KnownKernels, usable: Bools, kinds: Ints, work: Floats, source: Ints, same: Bools
) -> Unseen:
    """Say what new kernels are expected to be.

    Args:
        usable: Which known kernels tell anything. Shape (K,).
        kinds: Of the new kernels; -1 where nothing is like them. Shape (N,).
        work: FLOPs and bytes of the new kernels. Shape (2, N).
        source: The known kernel of each one's role; -1 without any. Shape (N,).
        same: Which are that very kernel. Shape (N,).
    """
    count, one = len(kinds), np.eye(PER_KERNEL)
    made = Unseen(
        parameters=np.zeros((count, PER_KERNEL)),
        by_source=np.zeros((count, PER_KERNEL, PER_KERNEL)),
        cov=np.zeros((count, PER_KERNEL, PER_KERNEL)),
        kept=np.zeros(count),
        by_kind=np.zeros((count, PER_KERNEL, PER_KERNEL * len(set(kinds.tolist()) - {-1}))),
    )
    told = known.of(usable)
    all_kinds = KindLaws(told, told)
    by_kind = {
        kind: KindLaws(known.of(usable & (known.kinds == kind) & (known.work[1] > 0.0)), told)
        for kind in set(kinds.tolist()) - {-1}
    }
    places = {kind: place for place, kind in enumerate(by_kind)}
    for n in range(count):
        k, kind = int(source[n]), by_kind.get(int(kinds[n]), all_kinds)
        if same[n]:
            made.parameters[n], made.by_source[n], made.kept[n] = known.parameters[k], one, 1.0
        elif kinds[n] < 0:
            made.parameters[n] = np.median(told.parameters, axis=0)
            made.cov[n] = np.diag(np.var(told.parameters, axis=0) + _NOTHING**2)
        elif k < 0:
            made.parameters[n], made.cov[n] = kind.expected(work[:, n]), np.diag(kind.own)
        else:
            # Of what the source deviates by, a part is its own, the rest what is unsure of it.
            own = np.diag(kind.own)
            gain = own @ np.linalg.inv(own + known.cov[k])
            rho = _alike(known.work[:, k], work[:, n])
            deviates = known.parameters[k] - kind.expected(known.work[:, k])
            made.parameters[n] = kind.expected(work[:, n]) + rho * gain @ deviates
            made.by_source[n] = by = rho * gain
            made.cov[n] = own - rho**2 * gain @ own - by @ known.cov[k] @ by.T
            made.kept[n] = rho
        if kinds[n] >= 0 and not same[n]:
            first = PER_KERNEL * places[int(kinds[n])]
            line = (one - made.by_source[n]) * kind.line
            made.by_kind[n, :, first : first + PER_KERNEL] = line
    return made


class KindLaws:
    """Kernels of one kind, and what their work says of them.

    Attributes:
        own: By how much each deviates from what its work says, squared. Shape (P,).
        line: Standard deviation of what work says. Shape (P,).
    """

    def __init__(self, like: KnownKernels, every: KnownKernels) -> None:
        """Learn it by leaving each kernel out.

        Args:
            like: Of the kind.
            every: Of all kinds: the one that takes least shows best what any launch takes.
        """
        least = np.arange(len(every.kinds)) == np.argmin(every.parameters[:, FIXED])
        self._shortest = float(every.parameters[least, FIXED][0])
        self._like, self._with_shortest = like, like.with_more(every.of(least))
        self.own = np.array([self._own(p) for p in range(PER_KERNEL)])
        self.line = np.array(
            [
                (1.0 / (self._of(p).variance[:, p] + self.own[p])).sum() ** -0.5
                for p in range(PER_KERNEL)
            ]
        )

    def expected(self, work: Floats) -> Floats:
        """Return the logarithms of parameters, as FLOPs and bytes alone say. Shape (P,)."""
        logs = np.array([_expected(self._of(p), p, work) for p in range(PER_KERNEL)])
        logs[FIXED] = max(logs[FIXED], self._shortest)  # no launch takes less
        return logs

    def _of(self, parameter: int) -> KnownKernels:
        return self._with_shortest if parameter == FIXED else self._like

    def _own(self, p: int) -> float:
        like = self._of(p)
        if (like.variance[:, p] < 1.0).sum() < FEWEST:
            return float(_FEW[p]) ** 2
        every = np.arange(len(like.kinds))
        missed2 = np.array(
            [
                (like.parameters[k, p] - _expected(like.of(every != k), p, like.work[:, k])) ** 2
                for k in every
            ]
        )
        least2 = found = float(_LEAST[p]) ** 2
        for _ in range(_ROUNDS):
            weights = (found + like.variance[:, p]) ** -2.0
            # What its own rows leave unsure of a kernel is no deviation.
            excess = missed2 - like.variance[:, p]
            found = max(float(weights @ excess) / float(weights.sum()), least2)
        return found


def _alike(work: Floats, other: Floats) -> float:
    """Return how much of a role's own holds between two sizes."""
    both = (work > 0.0) & (other > 0.0)
    apart = np.log(other[both] / work[both])
    return float(np.exp(-0.5 * float((apart**2).max(initial=0.0)) / _LENGTH**2))


def _expected(like: KnownKernels, parameter: int, work: Floats) -> float:
    """Return the logarithm of a parameter, as work alone says."""
    weights = 1.0 / (like.variance[:, parameter] + _LEAST[parameter] ** 2)
    sharp = _SHARP[parameter]
    used, asked = like.work.copy(), work.copy()
    if parameter == DRAM:
        used[0] = asked[0] = 0.0
    unit = used.max(axis=1, initial=1.0)
    # Relative errors count, so each kernel's own size is its unit.
    features = ((used / unit[:, None]) ** sharp).T
    wanted = (asked / unit) ** sharp
    if parameter == FIXED:
        features = np.column_stack([features, np.ones(len(features))])
        wanted = np.append(wanted, 1.0)
    goal = like.parameters[:, parameter] * sharp
    middle = float(goal.max())
    found = np.exp(goal - middle)
    scale = 1.0 / found
    for _ in range(_ROUNDS if parameter == FIXED else _FEW_ROUNDS):
        # Squares of logarithms, by weights that make squares of differences as large.
        weighed = np.sqrt(weights) * scale
        rates, _ = nnls(features * weighed[:, None], found * weighed)
        apart = features @ rates / found
        scale = np.log(np.maximum(apart, _TINY)) / found / np.where(apart == 1.0, 1.0, apart - 1.0)
        scale[apart == 1.0] = 1.0 / found[apart == 1.0]
    total = float(rates @ wanted)
    if total <= 0.0:
        return float(np.average(like.parameters[:, parameter], weights=weights))
    return float(np.log(total) + middle) / sharp
