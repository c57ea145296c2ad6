"""The training of `faults.py`: real PyTorch on the CPU, one loss a line, odd in the way asked for.

python faults_training.py STEPS FILE [HOW]
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import torch

from small_training import Model, Trains, batches, launches, train_once, training
from underclock.hw.clock import SystemClock
from underclock.hw.nvml_calls import SIMULATOR
from underclock.hw.simulated.served.client import Control
from underclock.runtime.trainer.marking import RUN

_BREAKS_AT, _STALLS_EVERY = 12, 8
_STALL_S, _SLEEP_S = 1.0, 0.06
_AHEAD = 4  # steps that no mark is in, and one that may be under way
_PATIENCE_S = 0.5


def plain(steps: int) -> Iterator[float]:
    """Train."""
    return training(Model(), steps)


def breaks(steps: int) -> Iterator[float]:
    """Train, and fail as a user's own code does."""
    for number, loss in enumerate(training(Model(), steps)):
        if number == _BREAKS_AT:
            raise RuntimeError("the user's own code failed")
        yield loss


def lengths(steps: int) -> Generator[float, None, None]:
    """Train in steps of one to three passes, with pauses of the host's in between."""
    model, draw = Model(), random.Random(0)  # noqa: S311 - step lengths

    def late() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in batches():
            time.sleep(draw.uniform(0.0, _SLEEP_S))  # noqa: TID251 - as a slow host does
            yield batch

    data, optimizer = late(), torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in range(steps):
        passes = 1 if number < _BREAKS_AT else draw.randint(1, 3)
        yield train_once(model, optimizer, data, passes)


def stalls(steps: int) -> Iterator[float]:
    """Train, and wait for data now and then."""
    for number, loss in enumerate(training(Model(), steps)):
        if number % _STALLS_EVERY == _STALLS_EVERY - 1:
            time.sleep(_STALL_S)  # noqa: TID251 - as a data loader does
        yield loss


def workers(method: str) -> Callable[[int], Iterator[float]]:
    """Train beside workers that train models of their own."""

    def train(steps: int) -> Iterator[float]:
        loader = torch.utils.data.DataLoader(
            Trains(), batch_size=None, num_workers=2, multiprocessing_context=method
        )
        for number, loss in enumerate(training(Model(), steps)):
            if number in {0, _BREAKS_AT}:  # before marks begin, and while they go on
                assert list(loader) == [4]  # noqa: S101 - the steps that a worker trained
            yield loss

    return train


def twice(steps: int) -> Iterator[float]:
    """Train in two processes on one GPU, which one of them marks."""
    other = [sys.executable, __file__, str(steps), f"{sys.argv[2]}.other"]
    with subprocess.Popen(other) as second:
        yield from training(Model(), steps)
        if second.wait() != 0:
            raise RuntimeError("the other training failed")


HOW: dict[str, Callable[[int], Iterator[float]]] = {
    "plain": plain,
    "breaks": breaks,
    "lengths": lengths,
    "stalls": stalls,
    "fork": workers("fork"),
    "spawn": workers("spawn"),
    "twice": twice,
}


def paced(losses: Iterator[float]) -> Iterator[float]:
    """Let training wait for its GPU, as who reads a loss does; not for ever, for it may be lost."""
    path, clock = os.environ.get(SIMULATOR), SystemClock()
    if path is None or RUN not in os.environ:
        yield from losses
        return
    gpu = int(os.environ.get("LOCAL_RANK", "0"))
    with Control(path) as control:
        begun = control.truth(gpu)["launches"]
        for number, loss in enumerate(losses):
            yield loss
            wanted = begun + (number - _AHEAD) * len(launches())
            until_s = clock.now_s() + _PATIENCE_S
            while control.truth(gpu)["launches"] < wanted and clock.now_s() < until_s:
                clock.sleep_s(5e-3)


def main() -> None:
    """Train, and write every loss as soon as it is known."""
    steps, path, how = int(sys.argv[1]), Path(sys.argv[2]), (*sys.argv[3:], "plain")[0]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with path.open("w") as file:
        for loss in paced(HOW[how](steps)):
            file.write(json.dumps(loss) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
