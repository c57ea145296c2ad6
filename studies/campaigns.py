"""Campaigns on eight simulated GPUs against one, and under kills. Writes docs/evidence/campaigns.

    OMP_NUM_THREADS=1 python studies/campaigns.py
    OMP_NUM_THREADS=1 python studies/campaigns.py --quick

A campaign's time is virtual: until the last GPU is done, warming up and waiting included.
"""

import argparse
import os
import random
import signal
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pages import fill, markdown, percent
from underclock import measure, plan, trace
from underclock.app.raying import RayWorkers, connected, measure_together
from underclock.campaign.progress import Tally
from underclock.campaign.survey import Campaign, Grid
from underclock.campaign.together import Answered, Told
from underclock.core.planning.goal import Goal
from underclock.records import SampleSet, Step, Window
from underclock.store import read_parts

GPU, WORKLOAD, BUDGET = "sim:rtx3080ti", "gpt3-xl", 0.01
WORKERS, KILLS, SEED = 8, 20, 29
CAMPAIGNS = {
    "a coarse grid": Campaign(grid=Grid.COARSE),
    **{f"adaptive, {which}": Campaign() for which in ("first", "second", "third")},
}
_SPEED = (
    *("campaign", "windows, one GPU / eight", "hours, one GPU", "hours, eight"),
    *("times faster", "plan of one GPU", "its interval", "plan of eight"),
)


def planned(samples: SampleSet) -> tuple[float, tuple[float, float]]:
    """Return a plan's change of energy with its interval."""
    arm = plan(samples, Goal(max_slowdown=BUDGET)).headline
    if arm.cost is None or arm.energy_interval is None:
        raise ValueError("the plan promises nothing")
    return arm.cost.energy_change, arm.energy_interval


def speed(step: Step, name: str, campaign: Campaign, folder: Path, seed: int) -> tuple[str, ...]:
    """Return a row of the table: one campaign on one GPU and on several."""
    tallies: list[Tally] = []
    to = folder / f"{name}.one.db"
    one = measure(step, gpu=GPU, to=to, campaign=campaign, seed=seed, progress=tallies.append)
    one_s = tallies[-1].gpu_s
    (all_,) = measure_together(
        step,
        gpus=[GPU] * WORKERS,
        to=folder / f"{name}.db",
        campaign=campaign,
        seed=100 * (seed + 1),
        progress=tallies.append,
    )
    all_s = tallies[-1].gpu_s
    (mine, (low, high)), (theirs, _) = planned(one), planned(all_)
    within = "inside" if low <= theirs <= high else "outside"
    return (
        name,
        f"{len(one.windows)} / {len(all_.windows)}",
        f"{one_s / 3600:.2f}",
        f"{all_s / 3600:.2f}",
        f"{one_s / all_s:.2f}",
        percent(mine),
        f"{percent(low)} to {percent(high)}",
        f"{percent(theirs)}, {within}",
    )


@dataclass(slots=True)
class Killer:
    """Kills workers at random, and keeps what was handed over.

    Attributes:
        most: Kills.
        every: Answers between two of them, about.
    """

    most: int
    every: int
    chance: random.Random
    killed: list[int]
    handed_over: list[Window]
    workers: RayWorkers | None = None

    def watch(self, workers: RayWorkers) -> None:
        """Keep what workers hand over."""
        self.workers = workers
        inner = workers.told

        def told() -> Told:
            found = inner()
            if isinstance(found, Answered):
                self.handed_over += [window for window, _ in found.windows]
            return found

        workers.told = told  # type: ignore[method-assign]

    def kill(self, _tally: Tally) -> None:
        """Kill one that runs, now and then."""
        if self.workers is None or len(self.killed) >= self.most:
            return
        running = sorted({*self.workers.processes.values()}.difference(self.killed))
        if running and self.chance.random() < 1.0 / self.every:
            self.killed.append(self.chance.choice(running))
            os.kill(self.killed[-1], signal.SIGKILL)


def kills(step: Step, campaign: Campaign, most: int, every: int, folder: Path) -> str:
    """Kill workers all through a campaign, and say what became of what they had handed over."""
    chance = random.Random(SEED)  # noqa: S311 - which worker is killed is no secret
    killer = Killer(most, every, chance, [], [])
    to = folder / "killed.db"
    gpus = [GPU] * WORKERS
    (found,) = measure_together(
        step, gpus=gpus, to=to, campaign=campaign, progress=killer.kill, told=killer.watch
    )
    on_file = Counter(
        (w.what, w.time_s, w.energy_j) for part in read_parts(to) for w in part.windows
    )
    handed = Counter((w.what, w.time_s, w.energy_j) for w in killer.handed_over)
    wanted = 1 + len(step.kernels) * len(found.settings)
    twice = sum(count - 1 for count in Counter(w.what for w in found.windows).values())
    return (
        f"{len(killer.killed)} workers were killed in a campaign of {wanted} windows on {WORKERS} "
        f"GPUs: {sum(handed.values())} windows were handed over, {(handed - on_file).total()} of "
        f"these are not on file, {(on_file - handed).total()} on file were not handed over, "
        f"{twice} were taken twice, and {wanted - len(found.windows) + twice} are missing."
    )


def main() -> None:
    """Run the study, then write its page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small grid and three kills")
    given = parser.parse_args()
    step = trace(WORKLOAD)
    small = Campaign(grid=Grid.COARSE, core_mhz=(1050, 1470, None), mem_mhz=(None,))
    campaigns = {"three clocks": small} if given.quick else CAMPAIGNS
    with tempfile.TemporaryDirectory() as made, connected("local"):
        folder = Path(made)
        rows = [
            speed(step, name, each, folder, max(0, n - 1))
            for n, (name, each) in enumerate(campaigns.items())
        ]
        most, every = (3, 3) if given.quick else (KILLS, 20)
        grid = next(iter(campaigns.values()))
        parts = {
            "speed": markdown([_SPEED, *rows]),
            "kills": kills(step, grid, most, every, folder),
        }
    repeats = f"{WORKLOAD} on {WORKERS} GPUs like {GPU}, simulated; three adaptive campaigns."
    fill("campaigns", parts, repeats=repeats, whole=not given.quick)


if __name__ == "__main__":
    main()
