"""A run of this process on a served GPU, and what befalls it."""

import dataclasses
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor as Pool
from pathlib import Path

import torch

from small_training import Model, plan, training
from underclock.hw.base import SystemClock
from underclock.hw.nvml_calls import SIMULATOR
from underclock.records import Plan
from underclock.records.runs import AskLine, EventLine, Line
from underclock.runtime.controller.log import read_log
from underclock.runtime.holding.held_gpu import applied
from underclock.runtime.holding.run import HowToRun
from underclock.runtime.undo.guarded_gpu import left_behind
from underclock.runtime.undo.ownership import Process, named_in
from underclock.testing import Control

Comes = Callable[..., None]
_MOST_STEPS = 200
_SET = ("core_lock", "mem_lock", "limit_w", "persistent")


@dataclasses.dataclass
class Bench:
    """A run of this process, and what is told of it.

    Attributes:
        folder: Where runs keep their files.
        log: Of the run.
        told: By this process, apart from the log.
    """

    folder: Path
    log: Path
    control: Control
    comes: Comes
    told: list[str] = dataclasses.field(default_factory=list)

    def lines(self) -> tuple[Line, ...]:
        return read_log(self.log) if self.log.exists() else ()

    def events(self) -> str:
        return "\n".join(line.text for line in self.lines() if isinstance(line, EventLine))

    def asks(self) -> int:
        return sum(isinstance(line, AskLine) for line in self.lines())

    def until(self, what: str, condition: Callable[[], object]) -> None:
        try:
            self.comes(lambda: bool(condition()))
        except AssertionError as exc:
            raise AssertionError(f"{what}: {self.told}, {self.events()}") from exc

    def state(self, gpu: int = 0) -> tuple[object, ...]:
        truth = self.control.truth(gpu)
        return tuple(truth[name] for name in _SET)

    def is_clean(self) -> bool:
        """Whether everything is as found, and no journal is left."""
        return self.state() == (None, None, 350.0, False) and not left_behind(self.folder)

    def how(self, **options: object) -> HowToRun:
        asked = HowToRun(log=self.log, tell=self.told.append)
        return dataclasses.replace(asked, **options)  # type: ignore[arg-type]

    def pids(self) -> tuple[int, int]:
        """Return who sets clocks, and who watches."""
        controller, watchdog = self._named()
        assert controller
        assert watchdog
        return controller.pid, watchdog.pid

    def has_another_watchdog(self, pid: int) -> bool:
        """Whether one watches that is not this one; between the two nobody is named."""
        _, watchdog = self._named()
        return watchdog is not None and watchdog.pid != pid

    def _named(self) -> tuple[Process | None, Process | None]:
        (lock,) = [path for path in self.folder.glob("GPU-*.lock") if path.stat().st_size]
        return named_in(lock)

    def train(
        self, befalls: Callable[[], None], made: Plan | None = None
    ) -> tuple[list[float], list[float]]:
        """Train under a plan, and let something befall it once clocks follow.

        Returns:
            The losses until that is over, and those of a plain training for as many steps.
        """

        def act() -> None:
            self.comes(lambda: self.asks() >= 2, 20.0)
            befalls()

        made = made or plan(launch_s=1e-3)
        losses = []
        torch.manual_seed(0)
        with applied(made, self.how(window=0)), Pool(1) as pool:
            acting = pool.submit(act)
            for loss in training(Model(), _MOST_STEPS):
                losses.append(loss)
                if acting.done():
                    break
                self._wait_for(len(losses) * len(made.step.order))
            acting.result()
        torch.manual_seed(0)
        return losses, list(training(Model(), len(losses)))

    def _wait_for(self, launches: int) -> None:
        """Wait for the GPU, as who reads the loss does; not for ever, for it may be lost."""
        clock = SystemClock()
        until_s = clock.now_s() + 0.2
        with Control(os.environ[SIMULATOR]) as control:
            while control.truth()["launches"] < launches and clock.now_s() < until_s:
                clock.sleep_s(5e-3)
