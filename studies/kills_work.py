"""Work for a controller that is about to be killed: it sets one thing after the other."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from itertools import count, cycle
from pathlib import Path
from typing import Any

from underclock.app.backends import open_gpu
from underclock.errors import UnderclockError
from underclock.hw.base import SystemClock, parse_gpu
from underclock.hw.interrupts import interruptible
from underclock.hw.lease import ClockLeases
from underclock.hw.nvml_calls import SIMULATOR, Value
from underclock.learning.pieces import write_places
from underclock.records import Clocks
from underclock.runtime.controller.starting import ControllerProcess
from underclock.runtime.holding.run import HowToRun, run
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.marking import RUN
from underclock.runtime.trainer.marks import ENTER, STEP
from underclock.runtime.trainer.notes import Hook
from underclock.runtime.trainer.streams import ServedStream
from underclock.runtime.undo.guarded_gpu import GuardedGpu
from underclock.units import Domain
from underclock.workloads import workload

PERIOD_S = 2e-3
_FIRSTS = 0, 40, 80, 120  # of the launches of the step that trains, at which there are marks
_LATE_EACH = 500  # a second at auto, every second: else clocks are set
_CHANGES: tuple[tuple[Domain, Value], ...] = (
    (Domain.CORE, 1200),
    (Domain.MEMORY, 5001),
    (Domain.CORE, 1500),
    (Domain.MEMORY, None),
    (Domain.CORE, None),
)


class Restless:
    """Sets the next thing every few milliseconds."""

    waits_on = ()

    def __init__(self, gpu: GuardedGpu, first: int) -> None:
        self._gpu = gpu
        self._changes = cycle((*_CHANGES[first:], *_CHANGES[:first]))
        self._next_s = 0.0

    def next_s(self) -> float:
        """Return when the next thing is set."""
        return self._next_s

    def wake(self, now_s: float) -> None:
        """Set it."""
        self._gpu.set(*next(self._changes))
        self._next_s = now_s + PERIOD_S


def begin(gpus: Mapping[str, GuardedGpu], options: Mapping[str, Any]) -> Restless:
    """Set one thing, and go on."""
    (gpu,) = gpus.values()
    work = Restless(gpu, int(options["first"]) % len(_CHANGES))
    work.wake(time.monotonic())
    return work


def _say(hook: Hook, first: int) -> None:
    """Say what a busy server would, another phase every few milliseconds."""
    clock = SystemClock()
    for number in count(first):
        if number % _LATE_EACH:
            hook.begin(("decode", "prefill")[number % 2], 1 + number % 3)
        else:
            hook.late()
        clock.sleep_s(PERIOD_S)


def measure() -> None:
    """Hold one pair of clocks after the other, as `underclock measure` does on a real GPU."""
    print(os.getpid(), flush=True)
    pairs = [Clocks(core_mhz=1200), Clocks(core_mhz=1500, mem_mhz=5001), Clocks(mem_mhz=5001)]
    clock, said = SystemClock(), False
    with interruptible(), open_gpu(parse_gpu("nvml:0")) as opened, ClockLeases(opened.gpu) as held:
        for number in count(int(sys.argv[2])):
            with held.hold(pairs[number % len(pairs)]):
                if not said:
                    said = print("armed", flush=True) is None
                clock.sleep_s(PERIOD_S)


def launch() -> None:
    """Start a controller, as `underclock run` does, and wait for its end.

    Its work is the above, or a governor's where a serving plan is named.
    """
    uuid, first, trainer, *plan = sys.argv[1:]

    work, reads = "kills_work:begin", subprocess.DEVNULL
    options: dict[str, object] = {"first": int(first)}
    if plan:
        work = "underclock.runtime.controller.governor:begin"
        options = {"plan": plan[0], "latency_s": PERIOD_S / 2.0}
        reads, notes = os.pipe()
        threading.Thread(target=_say, args=(Hook(notes, reads), int(first)), daemon=True).start()
    controller = ControllerProcess.start(
        [uuid],
        work=work,
        options=options,
        trainer_pid=int(trainer),
        stdin=reads,
    )
    print(controller.process.pid, flush=True)
    try:
        controller.armed()
        print("armed", flush=True)
        controller.ended()
    except UnderclockError:
        controller.undo()
    controller.close()


def learn() -> None:
    """Run a trainer while its clocks are learned, as `underclock run -- COMMAND` does."""
    step = workload("gpt3-125m", {"layers": 4, "batch": 6})
    how = HowToRun(gpus=("nvml:0",), learn=True, step=step, max_slowdown=0.03)
    with interruptible():
        run(None, [sys.executable, "-P", "-c", "import kills_work; kills_work.train()"], how)


def train() -> None:
    """Mark steps that the served GPU executes, as a training process does, without PyTorch."""
    (gpu,) = json.loads(Path(os.environ[RUN]).read_bytes())["gpus"]
    page = pages.Page.open(gpu["page"])
    page.claim()
    stream = ServedStream.connect(
        os.environ[SIMULATOR], gpu=gpu["index"], step=gpu["step"], page=page.path, marks=_FIRSTS
    )
    page.marks = _FIRSTS
    layers = [(ENTER, f"layers.{at}", 0, 1) for at in range(len(_FIRSTS) - 1)]
    write_places(page.path, [(STEP, "", 0, 1), *layers])
    page.tell(pages.MARKING)
    print("armed", flush=True)
    for number in count(1):
        page.enqueued = number
        for mark in range(1, len(_FIRSTS) + 1):
            stream.mark(pages.word_of(mark, number))
        stream.synchronise()
