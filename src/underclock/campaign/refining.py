"""A campaign on a board of a model that is known from other boards: what differs is measured."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from underclock.arrays import Ints
from underclock.campaign.recording import Recorder
from underclock.campaign.survey import Campaign
from underclock.campaign.worth import candidates_of, multiplier_of, planned_for, promise_spread
from underclock.core.design.sample_value import telling_shared
from underclock.core.design.wanted import Wanted
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.predicted_change import TWO_SIDED
from underclock.core.planning.goal import Goal
from underclock.records import Clocks, SampleSet, Window

_STEPS = 4  # runs of the whole step: everything is compared with them
_AT_ONCE = 8  # windows between two fits
_LEAST = 0.01  # of the promise's variance: what takes away less is not measured
_BASELINE_PART = 0.25  # of it, from which the whole step is run again
SHARE = 0.1
"""Of the windows that a board of the fleet took, at most so many are taken here."""


class Refining:
    """Wants the step at auto, what the cap shows, then what a plan's promise hangs on.

    Attributes:
        total: None: it takes as many as it needs.
        limit_s: None: few windows are its limit.
        short_of: How many times as unsure as asked the promise was at the last fit; ``None`` before
            there was one.
    """

    total: int | None = None
    limit_s: float | None = None

    def __init__(
        self,
        recorder: Recorder,
        campaign: Campaign,
        goal: Goal,
        hottest: str,
        fit: Callable[[SampleSet], CostEstimate],
    ) -> None:
        self.why = ""
        self.short_of: float | None = None
        self._recorder = recorder
        self._campaign = campaign
        self._goal = goal
        self._hottest = hottest
        self._fit = fit

    def begin(self) -> None:
        """Nothing is to be tried."""

    def next(self, spent_s: float) -> Sequence[Wanted]:
        """Return what is not on file yet of what every board is compared by, then what tells."""
        del spent_s
        samples = self._recorder.samples
        wanted = [Wanted(timed=False)] * (_STEPS - len(samples.in_situ))
        if not samples.samples:
            # What the cap makes of it shows what this board's sensor does.
            wanted.append(Wanted(self._hottest, timed=False))
        if wanted:
            return wanted
        known = self._fit(samples)
        plan = planned_for(known, self._goal)
        spread = promise_spread(known, [self._goal], [plan])
        self.short_of = TWO_SIDED * spread / self._campaign.precision
        taken = Counter((sample.kernel, sample.asked) for sample in samples.samples)
        if self.short_of <= 1.0 and len(taken) > 1:
            self.why = "the promise is as sharp as asked"
            return ()
        chosen = self._telling(known, plan, taken, (spread * known.table.auto_energy_j) ** 2)
        if known.baseline.spread[1] ** 2 > _BASELINE_PART * spread**2:
            chosen += [Wanted(timed=False, warm=not n) for n in range(_STEPS)]
        if not chosen:
            self.why = "what is unsure of the promise no few windows here take away"
        return chosen

    def _telling(
        self,
        known: CostEstimate,
        plan: Ints | None,
        taken: Counter[tuple[str, Clocks]],
        variance: float,
    ) -> list[Wanted]:
        """Return the windows that tell most of the promise, slowest clocks first."""
        candidates = candidates_of(known, taken, lambda _: np.ones_like(known.measurable))
        planned = np.full(len(known.counts), -1) if plan is None else plan.copy()
        planned[planned == known.table.baseline] = -1
        multiplier = multiplier_of(known, self._goal, plan)
        telling = telling_shared(
            candidates, multiplier, planned, most=_AT_ONCE, least=_LEAST * variance
        )
        chosen = [
            Wanted(known.table.kernels[k].name, asked=known.posterior.settings[c], timed=False)
            for k, c in telling.tolist()
        ]
        return sorted(chosen, key=lambda one: one.asked.rank)

    def at_once(self, window: Window) -> Sequence[Wanted]:
        """Return nothing: what is chosen is known to hold alone."""
        del window
        return ()


def hottest_kernel(board: SampleSet) -> str:
    """Return the kernel that draws most where it is left to the driver."""
    return max((s for s in board.samples if s.asked.is_auto), key=lambda s: s.power_w).kernel
