"""What the controller takes of a core, apart from all that trains; everything is simulated.

    PYTHONPATH=tests python benchmarks/conducting.py [--dry] [--runs 5] [--steps 150]

A step of 185 ms with 31 marks and 16 changes of the core clock on a served GPU, marked by a process
that does nothing else: stretches vary by 70 µs and steps by 0.9 %, as on an H200. Shares of a core
are the kernel's account of each thread from the 20th step on. How far off a change was is told from
when marks were truly written, which on a busy machine is late. Beside it stands what a process
takes that does nothing but wake as often and read the page.
"""

import argparse
import bisect
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from small_training import plan
from underclock.hw.base import SystemClock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import SIMULATOR, nvml_session
from underclock.records import Clocks, Plan, Segment, Step
from underclock.records.latencies import LatencyTable
from underclock.records.runs import AskLine, EndLine
from underclock.runtime.controller.log import read_log
from underclock.runtime.controller.polling import wake_on_time
from underclock.runtime.controller.run_files import Run
from underclock.runtime.controller.starting import ControllerProcess
from underclock.runtime.policy.parts import RankPart
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page
from underclock.runtime.trainer.sites import MarkSite
from underclock.runtime.undo.ownership import RUNTIME_DIR

LAUNCHES, MARKS, CHANGES = 310, 31, 16
STEP_S, CALL_S, DELAY_S = 0.185, 1e-3, 5e-3
_STRETCH_S, _STEP_SPREAD, _FIRST = 70e-6, 0.009, 20
_CLOCK = SystemClock()


def planned() -> tuple[Plan, RankPart]:
    """Return a plan of a step of equal launches, half of which run low, and its marks."""
    made = plan()
    if made.schedule is None:
        raise AssertionError("it has one")
    ends = [round(LAUNCHES * at / CHANGES) for at in range(CHANGES + 1)]
    schedule = msgspec.structs.replace(
        made.schedule,
        segments=tuple(
            Segment(launches=end - begin, clocks=Clocks(core_mhz=1110 if at % 2 else 1400))
            for at, (begin, end) in enumerate(itertools.pairwise(ends))
        ),
        switches=CHANGES,
        latencies=LatencyTable.constant(DELAY_S, call_s=CALL_S),
        launch_s=(STEP_S / LAUNCHES,) * LAUNCHES,
    )
    kernel = msgspec.structs.replace(made.step.kernels[0], count=LAUNCHES)
    choice = msgspec.structs.replace(made.kernels[kernel.name], auto_time_s=STEP_S)
    sites = tuple(
        MarkSite(launch=at * LAUNCHES // MARKS, event="enter", path="", occurrence=at, total=MARKS)
        for at in range(MARKS)
    )
    whole = msgspec.structs.replace(
        made,
        kernels={kernel.name: choice},
        step=Step(
            name=made.workload,
            kernels=(kernel,),
            order=(0,) * LAUNCHES,
            modules=("first",) * LAUNCHES,
        ),
        schedule=schedule,
    )
    return whole, RankPart(sites=sites, schedules=(schedule,))


def mark(path: str, steps: int, seed: int) -> None:
    """Write marks when they are due, and tell when that was."""
    draw, page = random.Random(seed), Page.open(path)  # noqa: S311 - noise
    page.tell(pages.MARKING)
    at_s, written_s = _CLOCK.now_s() + 0.2, []
    for step in range(1, steps + 1):
        stretch_s = STEP_S / MARKS * max(0.9, draw.gauss(1.0, _STEP_SPREAD))
        for value in range(1, MARKS + 1):
            _CLOCK.sleep_s(max(0.0, at_s - _CLOCK.now_s()))
            page.write(pages.word_of(value, step))
            written_s.append(_CLOCK.now_s())
            at_s += stretch_s + draw.gauss(0.0, _STRETCH_S)
        if step == _FIRST:
            print("warm", flush=True)
    print(json.dumps(written_s), flush=True)
    sys.stdin.read()


def taken_s(pid: int) -> dict[str, float]:
    """Return what each thread of a process has taken of the processor."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {each.name: int((each / "schedstat").read_text().split()[0]) / 1e9 for each in tasks}


def bare_share(path: str, looks_per_s: float) -> float:
    """Return what of a core it takes to wake so often, and to read a page."""
    wake_on_time()
    with closing(Page.open(path)) as page:
        begun_s, before_s = _CLOCK.now_s(), time.thread_time()
        at_s = begun_s
        while at_s < begun_s + 5.0:
            at_s += 1.0 / looks_per_s
            _CLOCK.sleep_s(max(0.0, at_s - _CLOCK.now_s()))
            page.reached()
        return (time.thread_time() - before_s) / (_CLOCK.now_s() - begun_s)


def one(run: Run, log: Path, steps: int, *, dry: bool, seed: int) -> str:
    """Follow one process that marks; return what that took, and how good it was, in words."""
    page = run.gpus[0].page
    command = [sys.executable, __file__, "--mark", page, "--steps", str(steps), "--seed", str(seed)]
    options = {
        "run": str(run.folder),
        "log": str(log),
        "dry": dry,
        "arms": "",
        "window": 0,
        "seed": seed,
        "steps": None,
        "metrics_port": None,
    }
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as marker:
        if marker.stdin is None or marker.stdout is None:
            raise AssertionError("they were asked for")
        controller = ControllerProcess.start(
            [] if dry else [run.gpus[0].uuid],
            work="underclock.runtime.controller.follow:begin",
            options=options,
            trainer_pid=marker.pid,
        )
        controller.armed()
        pid = controller.process.pid
        marker.stdout.readline()
        begun_s, before = _CLOCK.now_s(), taken_s(pid)
        written_s = json.loads(marker.stdout.readline())
        lasted_s, after = _CLOCK.now_s() - begun_s, taken_s(pid)
        marker.stdin.close()
        controller.ended()
        controller.close()
    lines = read_log(log)
    end = next(line for line in lines if isinstance(line, EndLine))
    shares = {name: (s - before.get(name, 0.0)) / lasted_s for name, s in after.items()}
    asks_s = [line.at_s + line.call_s + DELAY_S for line in lines if isinstance(line, AskLine)]
    off_s = sorted(_off_s(asks_s, written_s, steps))
    p50, p90, p99 = (1e3 * off_s[int(share * (len(off_s) - 1))] for share in (0.5, 0.9, 0.99))
    looks = end.looks / end.wall_s
    return (
        f"load {os.getloadavg()[0]:.1f}: {sum(shares.values()):.2%} of a core, main thread "
        f"{shares[str(pid)]:.2%}, bare wake-ups {bare_share(page, looks):.2%}; "
        f"{looks * STEP_S:.0f} looks a step; off {p50:.2f}, {p90:.2f}, {p99:.1f} ms"
    )


def _off_s(asks_s: Sequence[float], written_s: Sequence[float], steps: int) -> list[float]:
    """Return how far from each launch that changes clocks the nearest change was."""
    off_s = []
    for step in range(_FIRST, steps - 1):
        for at in range(CHANGES):
            index, into = divmod(round(LAUNCHES * at / CHANGES) * MARKS / LAUNCHES, 1)
            begin = step * MARKS + int(index)
            at_s = written_s[begin] + into * (written_s[begin + 1] - written_s[begin])
            after = bisect.bisect(asks_s, at_s)
            off_s.append(min(abs(each - at_s) for each in asks_s[max(0, after - 1) : after + 1]))
    return off_s


def main() -> None:
    """Repeat it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mark", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dry", action="store_true")
    asked = parser.parse_args()
    if asked.mark:
        mark(asked.mark, asked.steps, asked.seed)
        return
    made, part = planned()
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/s"
        os.environ[RUNTIME_DIR], os.environ[SIMULATOR] = folder, socket
        serve = [sys.executable, "-m", "underclock", "simulate", "rtx3080ti", "--socket", socket]
        with subprocess.Popen(serve, stdout=subprocess.DEVNULL) as server:
            while not Path(socket).exists():
                _CLOCK.sleep_s(0.05)
            for seed in range(asked.seed, asked.seed + asked.runs):
                with nvml_session():
                    uuid = NvmlGpu().uuid()
                run = Run.create(made, [part], ((uuid, 0),), simulated="RTX 3080 Ti")
                log = Path(folder) / f"{seed}.jsonl"
                print(one(run, log, asked.steps, dry=asked.dry, seed=seed), flush=True)
                run.remove()
            server.terminate()


if __name__ == "__main__":
    main()
