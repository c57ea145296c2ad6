"""What every policy of a comparison is given, and how its choice is judged.

Whatever a policy chooses by, it is judged on the joint costs that plans stand on, and keeps a
budget where a plan would say so.

Shape letters: K kernels, S settings, n launches.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from underclock.arrays import Ints
from underclock.core.inference.joint import JointCosts
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.model.predicted_change import PredictedChange
from underclock.core.planning.achievable import settled_cost
from underclock.core.planning.best_choice import tolerance_of
from underclock.core.planning.chance_constraint import Proof, room
from underclock.core.planning.choices import choice_cost, with_intervals
from underclock.core.planning.goal import Goal
from underclock.core.planning.strategies import SolvedStrategies
from underclock.core.solvers import SequenceProblem, solution_of
from underclock.core.step.table import CostTable
from underclock.records import Arm, Clocks, Cost, GpuInfo, Status, Strategy
from underclock.records.rivals import RivalChoice

SMALL = 1e-6
"""Of auto's time: to what a search keeps a budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """What every policy is given.

    Attributes:
        risk: How sure costs are; ``None`` where they are taken as certain.
        solved: The arms of a plan on the same costs.
        problem: The step as clocks can follow it; ``None`` where that is not known.
        seed: Of what searches at random.
        profiles: Power profiles that the driver lists; ``None`` where it was not asked.
    """

    table: CostTable
    goal: Goal
    risk: CostEstimate | JointCosts | None
    gpu: GpuInfo
    solved: SolvedStrategies
    problem: SequenceProblem | None = None
    seed: int = 0
    profiles: tuple[str, ...] | None = None

    def lateness(self, change: PredictedChange) -> float:
        """Return by how much a change overruns the budget as a plan has to keep it; below 0 not."""
        margin = room(change.time_spread, tolerance_of(self.table))
        return change.time_change + margin - self.goal.max_slowdown

    def judged(self, arm: Arm, change: PredictedChange, clocks: Iterable[Clocks]) -> RivalChoice:
        """Return a choice whose change is known."""
        return RivalChoice(
            arm=arm if self.risk is None else with_intervals(arm, change),
            keeps_budget=self.lateness(change) <= SMALL,
            clocks=tuple(dict.fromkeys(clocks)),
        )

    def change_of(self, setting: Ints) -> PredictedChange:
        """Return what a setting for each kernel, (K,), changes."""
        if self.risk is None:
            return certain(choice_cost(self.table, setting))
        return self.risk.predicted_change(setting)

    def of_kernels(self, name: Strategy, setting: Ints, proof: Proof) -> RivalChoice:
        """Return the choice of a setting for each kernel. Shape (K,)."""
        cost, change = choice_cost(self.table, setting), self.change_of(setting)
        longest = np.argsort(-self.table.time_s[np.arange(len(setting)), setting], kind="stable")
        held = [self.table.settings[s] for s in setting.tolist()]
        arm = Arm.of(name, cost, proof.status, proof.gap)
        found = self.judged(arm, change, (held[k] for k in longest.tolist()))
        names = (kernel.name for kernel in self.table.kernels)
        return msgspec.structs.replace(found, kernels=dict(zip(names, held, strict=True)))

    def of_launches(
        self, problem: SequenceProblem, name: Strategy, choice: Ints
    ) -> tuple[RivalChoice, float]:
        """Return the choice of a setting for each launch, (n,), and by how much it is late."""
        cost = settled_cost(self.table, problem, solution_of(problem, choice))
        time_spread, energy_spread = self._spreads(problem, choice)
        change = dataclasses.replace(
            certain(cost), time_spread=time_spread, energy_spread=energy_spread
        )
        lasts_s = np.bincount(
            choice, problem.time_s[problem.order, choice], len(self.table.settings)
        )
        held = [self.table.settings[s] for s in np.argsort(-lasts_s) if lasts_s[s] > 0.0]
        arm = Arm.of(name, cost, Status.BOUNDED)
        return self.judged(arm, change, held), self.lateness(change)

    def _spreads(self, problem: SequenceProblem, choice: Ints) -> tuple[float, float]:
        """Return how sure the cost of a schedule is: deviations of time and of energy."""
        if self.risk is None:
            return 0.0, 0.0
        if isinstance(self.risk, CostEstimate) and self.table.power_cap is not None:
            change = self.risk.predicted_schedule(choice)
            return change.time_spread, change.energy_spread
        launches = np.zeros((2, *self.table.time_s.shape))
        np.add.at(launches[0], (problem.order, choice), 1.0)
        np.add.at(launches[1, :, self.table.baseline], problem.order, 1.0)
        return self.risk.change_spread(*launches)


def certain(cost: Cost) -> PredictedChange:
    """Return the change of a cost that is taken as certain."""
    return PredictedChange(
        time_change=cost.time_change,
        energy_change=cost.energy_change,
        time_spread=0.0,
        energy_spread=0.0,
    )
