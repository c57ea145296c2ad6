"""Executed plans of a small pipeline whose truth is known, for tests."""

from dataclasses import dataclass

import numpy as np

from learned_jobs.runs import ExecutedRuns
from learned_jobs.transfers import Links, PipelineTimes
from underclock.arrays import Floats, Ints
from underclock.records import GpuInfo

STAGES, MICROBATCHES = 3, 6
CLOCKS_MHZ = np.arange(900, 1411, 15)
WAITING_W = 80.0
LINKS = Links(usual_s=0.003, slow=1, slower_s=0.02)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What a pipeline really takes; ``slack`` keeps its second boundary from ever mattering."""

    links: Links = LINKS
    load_s: float = 0.006
    data: int = 1
    noise: float = 3e-4

    def passes_s(self, clocks_mhz: Ints) -> Floats:
        """Return times of passes: a part goes as 1 / clock, until above 1300 MHz nothing does."""
        stage = np.arange(STAGES)[:, None, None]
        kind = np.arange(2)[:, None]
        alone_s = 0.1 * (1.0 + kind) * (1.0 + 0.1 * stage)
        first = np.where(np.arange(MICROBATCHES) == 0, 1.02, 1.0)
        times: Floats = alone_s * first * (0.2 + 0.8 * 1410.0 / np.minimum(clocks_mhz, 1300))
        return times

    def power_w(self, clocks_mhz: Ints) -> Floats:
        """Return what passes draw."""
        stage = np.arange(STAGES)[:, None, None]
        power: Floats = (1.0 + 0.03 * stage) * (100.0 + 200.0 * (clocks_mhz / 1410.0) ** 2)
        return power

    def runs(
        self, clocks_mhz: Ints, seed: int, *, between_nodes: int | None = 1, cold: int = -1
    ) -> ExecutedRuns:
        """Execute plans."""
        rng = np.random.default_rng(seed)
        plans = len(clocks_mhz)

        def scattered(of: Floats) -> Floats:
            return of * (1.0 + self.noise * rng.standard_normal(of.shape))

        times_s = scattered(self.passes_s(clocks_mhz))
        loads_s = np.zeros((plans, STAGES))
        loads_s[:, 0] = self.load_s
        made = ExecutedRuns(
            gpu=GpuInfo(name="a GPU"),
            workload="made up",
            data=self.data,
            between_nodes=between_nodes,
            plans=np.arange(plans),
            cold=np.arange(plans) == cold,
            clocks_mhz=clocks_mhz,
            times_s=times_s,
            loads_s=loads_s,
            iteration_s=np.ones(plans),
            energy_j=np.ones((plans, STAGES)),
        )
        pipeline = PipelineTimes(made)
        duration_s = pipeline.durations_s(times_s, self.links.transfer_s(STAGES), loads_s)
        iteration_s = scattered(pipeline.network.iteration_s(duration_s)) + self.links.reduce_s
        busy_s = times_s.sum(axis=(2, 3))
        energy_j = (self.power_w(clocks_mhz) * times_s).sum(axis=(2, 3))
        energy_j = energy_j + WAITING_W * (iteration_s[:, None] - busy_s)
        object.__setattr__(made, "iteration_s", iteration_s)
        object.__setattr__(made, "energy_j", scattered(energy_j))
        return made


def random_plans(count: int, seed: int) -> Ints:
    """Return plans with few clocks a stage and kind, the first with the top clock everywhere."""
    rng = np.random.default_rng(seed)
    shape = (count, STAGES, 2, MICROBATCHES)
    usual = rng.choice(CLOCKS_MHZ, size=(*shape[:3], 1))
    other = rng.choice(CLOCKS_MHZ, size=(*shape[:3], 1))
    clocks = np.where(np.arange(MICROBATCHES) < MICROBATCHES - 1, usual, other)
    clocks[0] = CLOCKS_MHZ[-1]
    return clocks
