"""Pipelines of PyTorch's on the CPU, one schedule after the other, as torchrun starts them.

All but the last schedule are traced here; the last one trains on, for `underclock trace` to look
at. Stages wait instead of computing, so that a loaded machine makes them hardly slower.
"""

import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed import pipelining

from traced_ranks import BACKWARD_S, FORWARD_S
from underclock.hw.cuda.torch_step import recorded
from underclock.tracing.job_files import SUFFIX, leave_trace

_MICROBATCHES, _WIDTH = 4, 8


class _Slowly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        del ctx
        threading.Event().wait(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        del ctx
        threading.Event().wait(BACKWARD_S)
        return gradient.clone()


class _Stage(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Any) -> Any:
        return _Slowly.apply(self.line(x))  # type: ignore[no-untyped-call]


def _trainer(name: str, *, optimizes: bool = False) -> Any:
    """Return what runs one step by a schedule."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    alone = name in {"GPipe", "1F1B"}
    total = world if alone else 2 * world
    last = total - 1 - rank if name.startswith("ZBV") else rank + world
    mine = [rank] if alone else [rank, last]
    cpu = torch.device("cpu")
    stages = [pipelining.PipelineStage(_Stage(), index, total, cpu) for index in mine]
    schedule = getattr(pipelining, f"Schedule{name}")(
        stages[0] if alone else stages, _MICROBATCHES, loss_fn=torch.nn.functional.mse_loss
    )
    weights = [each for stage in stages for each in stage.submod.parameters()]
    optimizer = torch.optim.SGD(weights, lr=0.01) if optimizes else None
    x, y = torch.randn(2, _MICROBATCHES * 2, _WIDTH)

    def step() -> None:
        given = [x] if 0 in mine else []
        schedule.step(*given, **({"target": y} if total - 1 in mine else {}))
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

    return step


def main(folder: Path, *names: str) -> None:
    """Train by each schedule."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    for name in names[:-1]:
        step = _trainer(name)
        step()
        distributed.barrier()
        with recorded(torch) as trace:
            step()
        path = folder / f"{name}.rank{distributed.get_rank()}{SUFFIX}"
        leave_trace(path, trace, source=Path(__file__))
    step = _trainer(names[-1], optimizes=True)  # whose steps are the script's
    for _ in range(5):
        step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
