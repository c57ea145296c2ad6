"""Auto against auto: how often `underclock run --arms` finds that equal things differ.

    python studies/arms.py [RUNS]             virtual time, for each way of looking at marks
    python studies/arms.py real RUNS AT_ONCE  processes and GPUs that are served, in real time

A run is as short as a verdict lets it be: it warms up from cold and has three rounds. Steps differ
in length by 2 %. In virtual time the machine, the arms and what tells energies from a counter are
those of a run; looks at marks come at once, late, or so late that some steps pass in between. In
real time all of `underclock run` is there, and a trainer that marks as one with PyTorch does.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from underclock.gpus.models import Latency
from underclock.hw.nvml_calls import SIMULATOR
from underclock.hw.simulated.rig import simulated_rig
from underclock.records import AUTO, Kernel
from underclock.records.latencies import LatencyTable
from underclock.records.runs import ArmLine
from underclock.runtime.conductor.gauges import Climbs, Gauge, Shown
from underclock.runtime.machine.steps import PassedStep
from underclock.runtime.policy.arms import LEAST_ROUNDS, ArmName, Arms
from underclock.runtime.simulated import Driven, Scheduled, StepLengths
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.marking import RUN
from underclock.runtime.trainer.marks import Counting
from underclock.runtime.trainer.page import Page
from underclock.runtime.trainer.streams import ServedStream
from underclock.runtime.undo.ownership import RUNTIME_DIR
from underclock.testing import served_gpus

_LAUNCH_S, _LAUNCHES = 8e-3, 12
_BLOCK, _SETTLING = 50, 10  # as a run has them for steps of a tenth of a second
_READ_S = 0.36  # from a reading of the energy counter until the next is begun
_REAL_STEPS = 390
LOOKS = {
    "at once": None,
    "late, as measured at a load of 11 on 2 cores": Latency(
        shares=(0.0, 0.5, 0.9, 1.0), points_s=(1e-4, 5e-4, 3.7e-3, 4.8e-3)
    ),
    "so late that steps are passed over": Latency(
        shares=(0.0, 0.7, 0.9, 1.0), points_s=(1e-3, 0.05, 0.2, 0.5)
    ),
}


def kernels() -> tuple[Kernel, ...]:
    """Return the kernels of a step, bound by either clock."""
    return tuple(
        Kernel(
            name=f"kernel {at}",
            flops=_LAUNCH_S * (2.2e13 if at % 3 == 0 else 2e12),
            bytes_moved=_LAUNCH_S * (1e11 if at % 3 == 0 else 7.5e11),
        )
        for at in range(_LAUNCHES)
    )


def compared(seed: int, looks: Latency | None) -> tuple[ArmLine, float]:
    """Run once in virtual time; return the difference, and the part of steps seen alone."""
    schedule = Scheduled(
        clocks=(AUTO,) * _LAUNCHES,
        table=LatencyTable.constant(0.01),
        predicted_s=(_LAUNCH_S,) * _LAUNCHES,
        marks=(0, 5),
    )
    machine = schedule.machine()
    if machine is None:
        raise AssertionError("changes of clocks take time here")
    machine.hold(AUTO)
    arms = Arms(
        names=(ArmName.AUTO, ArmName.AGAIN),
        block=_BLOCK,
        settling=_SETTLING,
        warming=_BLOCK,
        seed=seed,
    )
    shown, waiting, alone = Shown(), list[PassedStep](), 0
    with simulated_rig("rtx3080ti", seed=seed) as rig, rig.launcher.loop(kernels()):
        climbs = Climbs(rig.gpu.energy_j, rig.clock)
        driven = Driven(rig.device, machine, StepLengths(spread=0.02, seed=seed), looks)
        with driven.driving():
            while arms.seen < arms.needs(LEAST_ROUNDS):
                rig.clock.sleep_s(_READ_S)
                energy_s, energy_j = climbs.next()
                gauge = Gauge(
                    at_s=rig.clock.now_s(),
                    clocks=AUTO,
                    reasons=rig.gpu.throttle_reasons(),
                    power_w=0.0,
                    energy_j=energy_j,
                    energy_s=energy_s,
                )
                shown.add([gauge])
                waiting += machine.passed()
                while waiting and waiting[0].ended_s <= shown.upto_s():
                    step = waiting.pop(0)
                    line = shown.line(0, step, "")
                    alone += step.steps == 1
                    arms.stepped(step, line.energy_j)
    (difference,) = arms.differences()
    return difference, alone / arms.seen


Found = tuple[float, tuple[float, float]]  # a mean change and its interval


def row(name: str, found: Sequence[Found]) -> str:
    """Return what the differences of many runs come to, as a row of a table."""
    means = [100.0 * mean for mean, _ in found]
    error = statistics.stdev(means) / math.sqrt(len(means))
    missed = sum(not low <= 0.0 <= high for _, (low, high) in found)
    wide = statistics.median(100.0 * (high - low) / 2.0 for _, (low, high) in found)
    mean = statistics.fmean(means)
    return (
        f"| {name} | {len(found)} | {missed} ({missed / len(found):.1%}) | {mean:+.4f} ± "
        f"{error:.4f} % ({mean / error if error else 0.0:+.1f}) | {wide:.3f} % |"
    )


def heading() -> None:
    """Print the head of the table."""
    print("| what | runs | 0 excluded | mean ± its standard error (ratio) | median half-width |")
    print("|---|---|---|---|---|", flush=True)


def virtually(runs: int) -> None:
    """Print the table of runs in virtual time."""
    heading()
    for name, looks in LOOKS.items():
        made = [compared(seed, looks) for seed in range(runs)]
        alone = statistics.fmean(part for _, part in made)
        for what in ("time", "energy"):
            known = [
                (getattr(line, f"{what}_change"), getattr(line, f"{what}_interval"))
                for line, _ in made
            ]
            print(row(f"{what}, looks {name} ({alone:.0%} of steps seen alone)", known), flush=True)


def train(steps: int) -> None:
    """Mark steps as a trainer with PyTorch does, and wait for them."""
    run = json.loads(Path(os.environ[RUN]).read_text())
    (gpu,) = run["gpus"]
    with Page.open(gpu["page"]) as page:
        page.claim()
        page.tell(pages.MARKING)
        stream = ServedStream.connect(
            os.environ[SIMULATOR],
            gpu=gpu["index"],
            step=gpu["step"],
            page=page.path,
            marks=page.marks,
        )

        def fail(exc: BaseException) -> None:
            raise exc

        counting = Counting(page, fail)
        for _ in range(steps):
            counting.stepped()
            for mark in range(1, len(page.marks) + 1):
                stream.mark(counting.word(mark))
        stream.synchronise()


def really(runs: int, at_once: int) -> None:
    """Print the table of real runs, some at once."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served_gpus("rtx3080ti", Path(folder) / "s", count=at_once),
    ):
        os.environ[SIMULATOR], os.environ[RUNTIME_DIR] = f"{folder}/s", f"{folder}/runs"
        sys.path.append(str(Path(__file__).parents[1] / "tests"))
        from small_training import plan  # noqa: PLC0415 - it loads PyTorch
        from underclock.store import write_document  # noqa: PLC0415 - as above

        write_document(Path(folder) / "plan.json", plan())

        def one(number: int) -> Iterator[dict[str, object]]:
            command = [
                Path(sys.executable).with_name("underclock"), "run", f"{folder}/plan.json",
                "--gpu", f"nvml:{number}", "--arms", "auto,auto", "--json",
                "--", sys.executable, __file__, "train", str(_REAL_STEPS),
            ]  # fmt: skip
            for _ in range(number, runs, at_once):
                ended = subprocess.run(
                    list(map(str, command)), capture_output=True, text=True, check=False
                )
                summary = json.loads(ended.stdout or "{}").get("summary")
                if summary is None:
                    print(f"a run failed: {ended.stdout}{ended.stderr}", file=sys.stderr)
                    continue
                print(json.dumps(summary), file=sys.stderr, flush=True)
                yield summary

        loads = [os.getloadavg()[0]]
        with ThreadPoolExecutor(at_once) as pool:
            made = [
                each for some in pool.map(lambda n: list(one(n)), range(at_once)) for each in some
            ]
        loads.append(os.getloadavg()[0])
    told(made, loads)


def told(made: Sequence[dict[str, object]], loads: Sequence[float]) -> None:
    """Print what real runs came to."""
    arms = [arm for summary in made for arm in summary["arms"]]  # type: ignore[attr-defined]
    doubts = [arm["verdict"] for arm in arms if arm["verdict"]]
    good = [arm for arm in arms if not arm["verdict"]]
    seen = [summary["steps"] for summary in made]
    print(
        f"{len(made)} runs of {_REAL_STEPS} steps, {os.cpu_count()} cores, load at the beginning "
        f"and the end {loads}; steps seen: least {min(seen)}, median {statistics.median(seen)}; "  # type: ignore[type-var]
        f"{len(made) - len(arms)} without a whole round, {len(doubts)} without a verdict"
    )
    for words in sorted(set(doubts)):
        print(f"  {doubts.count(words)} x {words}")
    heading()
    for what in ("time", "energy"):
        print(
            row(f"{what}, real", [(arm[f"{what}_change"], arm[f"{what}_interval"]) for arm in good])
        )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["train", steps]:
            train(int(steps))
        case ["real", runs, at_once]:
            really(int(runs), int(at_once))
        case [*runs]:
            virtually(int(runs[0]) if runs else 200)
