"""What plans really cost on a simulated GPU: whole steps executed, by its hidden truth."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from underclock.core.solvers import Problem
from underclock.core.solvers.knapsack import solve_knapsack
from underclock.hw.simulated.clocks import snap
from underclock.hw.simulated.driver import Rig, simulated_rig
from underclock.physics.costs import boost_mhz, busy_w, duration_s
from underclock.records import AUTO, Clocks, Kernel, Plan, Step
from underclock.runtime.simulated import Scheduled, ScheduledLauncher

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
        rig: The GPU.
        step: The step.
        temperature_c: Of the step at auto.
    """

    auto_s: float
    auto_j: float
    rig: Rig
    step: Step
    temperature_c: float

    def changes(self, plan: Plan) -> tuple[float, float]:
        """Return what a plan truly changes, time and energy, as fractions of auto."""
        return self.of_clocks({name: choice.clocks for name, choice in plan.kernels.items()})

    def of_clocks(self, clocks: Mapping[str, Clocks]) -> tuple[float, float]:
        """Return what clocks of each kernel truly change, executed as whole steps.

        Switching is free. What is executed has a noise of its own, drawn once, which is taken out.
        """
        if all(each == AUTO for each in clocks.values()):
            return 0.0, 0.0
        launches = [self.step.kernels[i] for i in self.step.order]
        schedule = Scheduled(clocks=tuple(clocks[kernel.name] for kernel in launches))
        time_s, power_w = _executed(self.rig, launches, ScheduledLauncher(self.rig, schedule))
        return time_s / self.auto_s - 1.0, power_w * time_s / self.auto_j - 1.0

    def best(self, max_slowdown: float) -> float:
        """Return what the best choice of all clock pairs truly changes of the energy."""
        model, device = self.rig.device.model, self.rig.device
        boost = snap(boost_mhz(device.constants, self.temperature_c), model.core_mhz)
        pairs = [
            Clocks(core_mhz=core, mem_mhz=mem if model.memory_lockable else None)
            for mem in model.mem_mhz
            for core in model.core_mhz
            if core <= boost
        ]
        core_mhz = np.array([float(p.core_mhz or 0) for p in pairs])
        mem_mhz = np.array([float(p.mem_mhz or model.mem_mhz[-1]) for p in pairs])
        costs = []
        for kernel in self.step.kernels:
            own = model.kernel(kernel)
            time_s = kernel.count * duration_s(device.constants, own, core_mhz, mem_mhz)
            power_w = busy_w(device.constants, own, core_mhz, mem_mhz, self.temperature_c)
            costs.append((time_s, power_w * time_s))
        times, energies = np.moveaxis(np.array(costs), 1, 0)
        budget_s = self.auto_s * (1.0 + max_slowdown)
        solution = solve_knapsack(Problem(time_s=times, energy_j=energies, budget_s=budget_s))
        if not len(solution.choice):
            return 0.0
        chosen = zip(self.step.kernels, solution.choice, strict=True)
        return self.of_clocks({kernel.name: pairs[c] for kernel, c in chosen})[1]


def _executed(
    rig: Rig, launches: Sequence[Kernel], launcher: ScheduledLauncher
) -> tuple[float, float]:
    """Return time in s and power in W of a step at its own heat, without the noise of this run."""
    device = rig.device
    with launcher.loop(launches) as loop:
        rig.clock.sleep_s(_WARM_S)
        running = device.running
        if running is None:
            raise AssertionError("the loop was entered")
        before, begun_j, begun_s = loop.progress(), device.energy_j, device.now_s
        while loop.progress().launches < before.launches + _STEPS:
            rig.clock.sleep_s(before.elapsed_s / max(1, before.launches))
        after = loop.progress()
        power_w = (device.energy_j - begun_j) / (device.now_s - begun_s) / running.power_noise
        taken_s = (after.elapsed_s - before.elapsed_s) / (after.launches - before.launches)
        return taken_s / running.time_noise, power_w


@contextmanager
def truth_of(model: str, step: Step, *, unit: int = 0, runs: int = _RUNS) -> Iterator[Truth]:
    """Find out what a step truly costs at auto clocks; the GPU lives as long as the block."""
    with simulated_rig(model, seed=0, unit=unit) as rig:
        device = rig.device
        launches = [step.kernels[i] for i in step.order]
        costs: list[tuple[float, float]] = []
        for _ in range(runs):
            # The mean over many runs, not one run without noise: at the cap, noise slows the step
            # by more than its absence speeds it up.
            with rig.launcher.loop(launches) as loop:
                rig.clock.sleep_s(_WARM_S if not costs else _SETTLE_S)
                before, begun_j, begun_s = loop.progress(), device.energy_j, device.now_s
                while loop.progress().launches < before.launches + _STEPS:
                    rig.clock.sleep_s(1.0)
                after = loop.progress()
                power_w = (device.energy_j - begun_j) / (device.now_s - begun_s)
                taken_s = (after.elapsed_s - before.elapsed_s) / (after.launches - before.launches)
            costs.append((taken_s, power_w * taken_s))
        auto_s, auto_j = np.mean(costs, axis=0).tolist()
        yield Truth(
            auto_s=auto_s, auto_j=auto_j, rig=rig, step=step, temperature_c=device.temperature_c
        )
