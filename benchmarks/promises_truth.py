"""What plans really cost on a simulated GPU: its hidden physics, at the step's own temperature."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from underclock.core.costs.cap import near_cap
from underclock.core.knapsack import Exact, Problem
from underclock.hw.simulated.launcher import VirtualLauncher
from underclock.hw.simulated.locks import snap
from underclock.hw.simulated.rig import Rig, simulated_rig
from underclock.physics.thermal import boost_mhz
from underclock.records import Clocks, Kernel, Plan, Step

_WARM_S = 300.0
_SETTLE_S = 1.0
_STEPS = 20
_RUNS = 400


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What a step costs on a simulated GPU, free of the noise of any one measurement.

    Attributes:
        auto_s: Time of a step at auto clocks, run whole.
        auto_j: Energy of it.
        isolated: Time and energy of each kernel's launches at auto, run alone.
        capped: Which kernels the power cap holds when they run alone at auto.
        rig: The GPU.
        step: The step.
        temperature_c: Of the step at auto.
    """

    auto_s: float
    auto_j: float
    isolated: dict[str, tuple[float, float]]
    capped: frozenset[str]
    rig: Rig
    step: Step
    temperature_c: float

    def changes(self, plan: Plan) -> tuple[float, float]:
        """Return what a plan truly changes, time and energy, as fractions of auto."""
        locked_s, locked_j = 0.0, 0.0
        left: list[Kernel] = []
        for kernel in self.step.kernels:
            clocks = plan.kernels[kernel.name].clocks
            if clocks.is_auto:
                left.append(kernel)
                continue
            time_s, energy_j = self._cost(kernel, clocks)
            locked_s += time_s
            locked_j += energy_j
        settled = self._left_at_auto(left)
        return (
            (locked_s + settled[0]) / self.auto_s - 1.0,
            (locked_j + settled[1]) / self.auto_j - 1.0,
        )

    def best(self, max_slowdown: float) -> float:
        """Return what the best choice of all clock pairs truly changes of the energy."""
        model = self.rig.device.model
        pairs = [Clocks(core_mhz=c, mem_mhz=m) for m in model.mem_mhz for c in model.core_mhz]
        costs = np.array(
            [
                [*(self._cost(kernel, clocks) for clocks in pairs), self._left_at_auto([kernel])]
                for kernel in self.step.kernels
            ]
        )
        problem = Problem(
            time_s=costs[..., 0],
            energy_j=costs[..., 1],
            budget_s=self.auto_s * (1.0 + max_slowdown),
        )
        return Exact().solve(problem).energy_j / self.auto_j - 1.0

    def _left_at_auto(self, kernels: Sequence[Kernel]) -> tuple[float, float]:
        """Share the whole step's cost among kernels as a plan does: the capped ones settle it."""
        totals = []
        for part, whole in enumerate((self.auto_s, self.auto_j)):
            fixed = math.fsum(c[part] for n, c in self.isolated.items() if n not in self.capped)
            movable = math.fsum(self.isolated[n][part] for n in self.capped)
            factor = (whole - fixed) / movable if self.capped else whole / fixed
            totals.append(
                math.fsum(
                    self.isolated[k.name][part]
                    * (factor if k.name in self.capped or not self.capped else 1.0)
                    for k in kernels
                )
            )
        return totals[0], totals[1]

    def _cost(self, kernel: Kernel, clocks: Clocks) -> tuple[float, float]:
        return steady(self.rig, kernel, clocks, self.temperature_c)[:2]


def steady(
    rig: Rig, kernel: Kernel, clocks: Clocks, temperature_c: float
) -> tuple[float, float, bool]:
    """Return time and energy of a kernel's launches in a step, and whether the cap holds it."""
    device = rig.device
    constants = device.model.kernel(kernel)
    ceiling = boost_mhz(device.constants, temperature_c)
    wanted = float(snap(min(ceiling, clocks.core_mhz or math.inf), device.model.core_mhz))
    mem = clocks.mem_mhz or device.model.mem_mhz[-1]
    limit_w = device.limit_w - device.model.cap_margin_w
    core = device._costs.capped_mhz(constants, wanted, mem, temperature_c, limit_w)  # noqa: SLF001
    cost = device._costs.at(constants, core, mem)  # noqa: SLF001 - the hidden truth
    time_s = cost.duration_s * kernel.count
    return time_s, cost.power_w(temperature_c) * time_s, core < wanted


@contextmanager
def truth_of(model: str, step: Step, *, unit: int = 0) -> Iterator[Truth]:
    """Find out what a step truly costs at auto clocks; the GPU lives as long as the block."""
    with simulated_rig(model, seed=0, unit=unit) as rig:
        device = rig.device
        launches = [step.kernels[i] for i in step.order]
        costs: list[tuple[float, float]] = []
        for _ in range(_RUNS):
            # The mean over many runs, not one run without noise: at the cap, noise slows the step
            # by more than its absence speeds it up.
            with VirtualLauncher(device).loop(launches) as loop:
                rig.clock.sleep_s(_WARM_S if not costs else _SETTLE_S)
                before, begun_j, begun_s = loop.progress(), device.energy_j, device.now_s
                while loop.progress().launches < before.launches + _STEPS:
                    rig.clock.sleep_s(1.0)
                after = loop.progress()
                power_w = (device.energy_j - begun_j) / (device.now_s - begun_s)
                taken_s = (after.elapsed_s - before.elapsed_s) / (after.launches - before.launches)
            costs.append((taken_s, power_w * taken_s))
        auto_s, auto_j = np.mean(costs, axis=0).tolist()
        temperature_c = device.temperature_c
        alone = {k.name: steady(rig, k, Clocks(), temperature_c) for k in step.kernels}
        at_cap = near_cap(
            np.array([energy_j / time_s for time_s, energy_j, _ in alone.values()]),
            np.array([held for *_, held in alone.values()]),
        )
        yield Truth(
            auto_s=auto_s,
            auto_j=auto_j,
            isolated={name: cost[:2] for name, cost in alone.items()},
            capped=frozenset(n for n, held in zip(alone, at_cap.tolist(), strict=True) if held),
            rig=rig,
            step=step,
            temperature_c=temperature_c,
        )
