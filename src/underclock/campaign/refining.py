"""A campaign on a board of a model that is known from other boards: what differs is measured."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from underclock.arrays import Ints
from underclock.campaign.recording import Recorder, WindowPolicy
from underclock.campaign.worth import candidates_of, multiplier_of, planned_for
from underclock.core.design.sample_value import telling_shared
from underclock.core.design.wanted import WHOLE_STEPS, Wanted
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.planning.goal import Goal
from underclock.core.step.under_cap import cap_of, nearest_settings, settled_step
from underclock.records import SampleSet

_AT_ONCE = 8  # windows between two fits
_LEAST = 0.002  # of what is unsure of a promise: what takes away less is not measured
SHARE = 0.1
"""Of the windows that a board of the fleet took, at most so many are taken here."""


class Refining(WindowPolicy):
    """Wants the step at auto, what the cap shows, then what a plan's promise hangs on."""

    def __init__(
        self,
        recorder: Recorder,
        goal: Goal,
        hottest: str,
        fit: Callable[[SampleSet], CostEstimate],
    ) -> None:
        self._recorder = recorder
        self._goal = goal
        self._hottest = hottest
        self._fit = fit

    def next(self, spent_s: float, pending: Sequence[Wanted] = ()) -> Sequence[Wanted]:
        """Return what is not on file yet of what every board is compared by, then what tells."""
        del spent_s, pending
        samples = self._recorder.samples
        wanted = [Wanted(timed=False)] * (WHOLE_STEPS - len(samples.in_situ))
        if not samples.samples:
            # What the cap makes of it shows what this board's sensor does.
            wanted.append(Wanted(self._hottest, timed=False))
        if wanted:
            return wanted
        known = self._fit(samples)
        taken = Counter((sample.kernel, sample.asked) for sample in samples.samples)
        plan = planned_for(known, self._goal)
        telling = telling_shared(
            candidates_of(known, taken, lambda _: np.ones_like(known.measurable)),
            multiplier_of(known, self._goal, plan),
            _locked(known, plan),
            most=_AT_ONCE,
            least=_LEAST,
        )
        chosen = [
            Wanted(known.table.kernels[k].name, asked=known.posterior.settings[c], timed=False)
            for k, c in telling.tolist()
        ]
        if not chosen:
            self.why = "no window more tells much of this board"
        return sorted(chosen, key=lambda one: one.asked.rank)


def _locked(known: CostEstimate, plan: Ints | None) -> Ints:
    """Return the locked setting of each kernel in a plan; for auto, nearest to where it settles."""
    table, order = known.table, cap_of(known.table).order
    auto = np.full(len(order), table.baseline)
    settled = np.zeros(len(table.kernels), dtype=np.int64)
    settled[order] = nearest_settings(table, settled_step(table, auto), cap_of(table).boost)
    if plan is None:
        return settled
    locked: Ints = np.where(plan == table.baseline, settled, plan)
    return locked


def hottest_kernel(board: SampleSet) -> str:
    """Return the kernel that draws most where it is left to the driver."""
    return max((s for s in board.samples if s.asked.is_auto), key=lambda s: s.power_w).kernel
