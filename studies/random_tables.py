"""Random tables of which the truth is known: every plan is judged by it.

Goes on where an earlier run stopped: each table is a line of the output.

OMP_NUM_THREADS=1 python studies/random_tables.py [--tables N] [--first SEED] [--to FILE.jsonl]
OMP_NUM_THREADS=1 python studies/random_tables.py --page [--to FILE.jsonl]
"""

import argparse
import json
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TypeVar

import numpy as np

from random_tables_made import MadeTable, made_table
from random_tables_page import write_page
from underclock.campaign.survey import Campaign, Grid
from underclock.core.planning.goal import Goal
from underclock.errors import UnderclockError
from underclock.records import Plan, SampleSet
from underclock.stages.fit import fit
from underclock.stages.measure import measure
from underclock.stages.plan import plan
from underclock.stages.predict import predict
from underclock.stages.score import score
from underclock.store import read_samples

PAGE = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "random_tables.md"
BUDGETS = (0.0, 0.01, 0.05)
LONGEST_S = 300.0  # of the processor's time, for one thing done to a table
_SMALL = 25  # rows: a campaign takes them all
_ROUNDS = 5  # of a campaign that looks for what is worth most; a fit each
_MODELS = ("rtx3080ti", "a40", "a100", "titanx", "h200")
_DRAWS = 10
_CUT_OFF = 0.3  # of campaigns, which then go on
_PREDICTED = 0.25  # of tables
T = TypeVar("T")


class TooLongError(Exception):
    """Something has not come to an end."""


@dataclass(slots=True)
class Judge:
    """Does everything to one table, and writes down what became of it.

    Attributes:
        made: The table and its truth.
        folder: For files.
        random: Of what is done.
        longest_s: Most time of the processor for each thing done; ``None`` for any.
        plans: What every plan promised and what it truly does.
        refused: Sentences in place of a result.
        failed: Tracebacks, and what did not end.
    """

    made: MadeTable
    folder: Path
    random: np.random.Generator
    longest_s: float | None = LONGEST_S
    plans: list[dict[str, object]] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Plan the table, measure it in campaigns, fit and predict."""
        path = self.folder / "table.csv"
        self.made.write(path)
        table = self._try("read", lambda: read_samples(path))
        if table is None:
            return
        self._plan("rows", table)
        budget = float(self.random.choice(BUDGETS))
        self._plan("fit", table, raw=False, budgets=(budget,))
        taken = self._try("campaign", lambda: self._campaign(path, table, budget))
        if taken is not None:
            self._plan("campaign", taken, budgets=(budget,))
            self._try("fit", lambda: fit(taken))
        if self._happens(_PREDICTED):
            like = f"sim:{self.random.choice(_MODELS)}"
            self._try("predict", lambda: predict(table, like=like, draws=_DRAWS))

    def _campaign(self, path: Path, table: SampleSet, budget: float) -> SampleSet:
        """Take some rows of the table, or all of a small one; half of the campaigns are cut off."""
        kernels, rows = len(table.kernels), len(table.samples)
        rounds = int(self.random.integers(0, _ROUNDS))
        some = int(self.random.uniform(1.0, 6.0) * kernels) + rounds * max(1, kernels // 4)
        most = None if rows <= _SMALL else some
        if self._happens(_CUT_OFF):
            self._measure(path, budget, max(1, round((most or rows) * self.random.random())))
        return self._measure(path, budget, most)

    def _happens(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def _measure(self, path: Path, budget: float, most: int | None) -> SampleSet:
        campaign = Campaign(grid=Grid.ADAPTIVE, max_samples=most, slowdowns=(budget,))
        return measure(gpu=f"replay:{path}", to=self.folder / "s.db", campaign=campaign)

    def _plan(
        self,
        source: str,
        samples: SampleSet,
        *,
        raw: bool | None = None,
        budgets: tuple[float, ...] = BUDGETS,
    ) -> None:
        for budget in budgets:
            goal = Goal(max_slowdown=budget)
            planned = self._try(f"plan of {source}", lambda g=goal: plan(samples, g, raw=raw))  # type: ignore[misc]
            if planned is not None:
                self.plans.append(self._judged(source, samples, budget, planned))

    def _judged(
        self, source: str, samples: SampleSet, budget: float, planned: Plan
    ) -> dict[str, object]:
        chosen = {name: choice.clocks for name, choice in planned.kernels.items()}
        arm = planned.arm(planned.chosen)
        time_change, energy_change = self.made.changes(chosen, planned.baseline)
        promise = planned.promise
        result: dict[str, object] = {
            "source": source,
            "budget": budget,
            "kernels": len(chosen),
            "set": sum(clocks != planned.baseline for clocks in chosen.values()),
            "energy": promise.energy_change,
            "energy_interval": arm.energy_interval,
            "time": promise.time_change,
            "time_interval": arm.time_interval,
            "true_energy": energy_change,
            "true_time": time_change,
        }
        if arm.energy_interval is None:
            # Of this table: what it says is what it is.
            scored = score(planned, samples)
            result["table_energy"] = scored.energy_change
            result["table_time"] = scored.time_change
        return result

    def _try(self, what: str, work: Callable[[], T]) -> T | None:
        """Do something; a sentence is an answer, anything else that is raised is a failure."""
        try:
            with _at_most(self.longest_s), warnings.catch_warnings():
                warnings.simplefilter("error")
                return work()
        except UnderclockError as exc:
            self.refused.append(f"{what}: {type(exc).__name__}: {exc}")
        except TooLongError:
            self.failed.append(f"{what}: no end within {self.longest_s} s")
        except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
            self.failed.append(f"{what}: {traceback.format_exc()}")
        return None


@contextmanager
def _at_most(longest_s: float | None) -> Iterator[None]:
    """Interrupt what takes more of the processor's time."""
    if longest_s is None:
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, longest_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def judge(seed: int, *, most_kernels: int = 60, longest_s: float | None = LONGEST_S) -> Judge:
    """Make a table and do everything to it."""
    with tempfile.TemporaryDirectory() as folder:
        judged = Judge(
            made=made_table(seed, most_kernels=most_kernels),
            folder=Path(folder),
            random=np.random.default_rng([seed, 15]),
            longest_s=longest_s,
        )
        judged.run()
    return judged


def line_of(seed: int, judged: Judge, spent_s: float) -> dict[str, object]:
    """Return what is kept of a table."""
    made = judged.made
    return {
        "seed": seed,
        "kernels": len(made.counts),
        "pairs": len(made.pairs),
        "mems": len({clocks.mem_mhz for clocks in made.pairs if clocks.core_mhz}),
        "rows": len(made.rows),
        "repeats": made.repeats,
        "capped": made.capped,
        "scatter": [made.scatter.time, made.scatter.power],
        "wild": [made.scatter.wild_runs, made.scatter.wild_rows],
        "plans": judged.plans,
        "refused": judged.refused,
        "failed": judged.failed,
        "spent_s": round(spent_s, 2),
    }


def main() -> None:
    """Judge tables not yet in the output, or write the page about those that are."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tables", type=int, default=1000)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--to", type=Path, default=Path("random_tables.jsonl"))
    options.add_argument("--page", action="store_true")
    asked = options.parse_args()
    lines = asked.to.read_text().splitlines() if asked.to.exists() else []
    if asked.page:
        write_page([json.loads(line) for line in lines], PAGE)
        return
    done = {json.loads(line)["seed"] for line in lines}
    for seed in range(asked.first, asked.first + asked.tables):
        if seed in done:
            continue
        begun_s = time.process_time()
        judged = judge(seed)
        line = line_of(seed, judged, time.process_time() - begun_s)
        with asked.to.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(seed, f"{line['spent_s']} s", *judged.failed, sep="  ", flush=True)


if __name__ == "__main__":
    main()
