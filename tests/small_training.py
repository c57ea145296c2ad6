"""A tiny model that trains on the CPU, and the step that a trace of it would show."""

import itertools
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch import nn

from underclock.records import (
    AUTO,
    Aggregate,
    Arm,
    Choice,
    Clocks,
    ClockSchedule,
    Cost,
    Evidence,
    GpuInfo,
    Granularity,
    Kernel,
    Objective,
    Pass,
    Plan,
    Segment,
    Status,
    Step,
    Strategy,
)
from underclock.records.latencies import LatencyTable
from underclock.records.runs import StepLine
from underclock.runtime.controller.run_files import Run
from underclock.runtime.machine.timetable import PassedStep
from underclock.runtime.policy.parts import RankPart
from underclock.runtime.trainer.marking import RUN
from underclock.runtime.trainer.page import mark_of
from underclock.runtime.trainer.sites import marked, scheduled

Event = tuple[str, str]

UNCOMPILED = """
import sys, types
sys.modules["torch._dynamo"] = compiler = types.ModuleType("torch._dynamo")
compiler.disable = lambda function, *_, **__: function
compiler.graph_break = lambda: None
"""
"""What a script in a process of its own begins with, for an optimiser asks PyTorch's compiler to
leave it alone: to load that takes longer than the rest."""
SCRIPT = f"""
import os, sys
if "{RUN}" in os.environ:
    exec({UNCOMPILED!r})
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(2048, 2048)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(int(sys.argv[1])):
    model(torch.ones(512, 2048)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
"""
"""A training script that ends soon, and a run of it sooner; takes how many steps it trains."""


class Block(nn.Module):
    """Two products and what is added around them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add to what comes in."""
        inner: torch.Tensor = self.drop(self.down(torch.relu(self.up(x))))
        return x + inner


class Model(nn.Module):
    """Some blocks between two layers."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.last = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run through all."""
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        last: torch.Tensor = self.last(x)
        return last


def batches(seed: int = 1) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield what to learn, without end."""
    made = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(16, 4, generator=made)
        yield x, x.sum(dim=1, keepdim=True)


def train(model: nn.Module, steps: int, **how: Any) -> list[float]:
    """Train, and return the loss of each step."""
    return list(training(model, steps, **how))


def training(model: nn.Module, steps: int, *, passes: int = 1) -> Generator[float, None, None]:
    """Train step by step; gradients are gathered over some passes."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = batches()
    for _ in range(steps):
        yield train_once(model, optimizer, data, passes)


def train_once(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Iterator[tuple[torch.Tensor, torch.Tensor]],
    passes: int,
) -> float:
    """Take one step of the optimizer; gradients are gathered over some passes."""
    total = 0.0
    for _ in range(passes):
        x, y = next(data)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad()
    return total


def launches(blocks: int = 3, passes: int = 1) -> tuple[tuple[str, Pass], ...]:
    """Return module and pass of the launches that a trace would show of `train`'s step."""
    forward = ["first"]
    for at in range(blocks):
        block = f"blocks.{at}"
        forward += [f"{block}.up", block, f"{block}.down", f"{block}.drop", block]
    forward += ["last"]
    backward = [path for path in reversed(forward) for _ in range(2)]
    once = [(path, Pass.FORWARD) for path in forward]
    once += [("", Pass.FORWARD), ("", Pass.BACKWARD)]  # the loss
    once += [(path, Pass.BACKWARD) for path in backward]
    return tuple(once) * passes + (("", Pass.OPTIMIZER),) * 2


def kernels_of(
    some: tuple[tuple[str, Pass], ...],
) -> tuple[tuple[Kernel, ...], tuple[int, ...], tuple[str, ...]]:
    """Return kernels, order and modules of such launches."""
    names = [f"{path or 'no module'} {pass_}" for path, pass_ in some]
    each = list(dict.fromkeys(names))
    kernels = tuple(
        Kernel(name=name, pass_=some[names.index(name)][1], count=names.count(name))
        for name in each
    )
    return kernels, tuple(each.index(name) for name in names), tuple(path for path, _ in some)


def files_of(made: Plan, gpus: Sequence[tuple[str, int]], *, simulated: str = "") -> Run:
    """Make the files of a run under a plan, on GPUs named by UUID and index."""
    part = RankPart(sites=marked(made)[0], schedules=(scheduled(made),))
    return Run.create(made, [part], gpus, simulated=simulated)


def plan(
    passes: int = 1, *, launch_s: float = 2e-3, low_mhz: int = 1110, gpu: GpuInfo | None = None
) -> Plan:
    """Return a plan for `train`'s step on the simulated RTX 3080 Ti: the backward pass runs low.

    Everything is bound by memory, so that a low clock costs little time.
    """
    some = launches(passes=passes)
    kernels, order, modules = kernels_of(some)
    kernels = tuple(
        msgspec.structs.replace(each, flops=1e6, bytes_moved=launch_s * 7.5e11) for each in kernels
    )
    segments = tuple(
        Segment(launches=len(list(run)), clocks=Clocks(core_mhz=low_mhz if backward else None))
        for backward, run in itertools.groupby(some, lambda each: each[1] is Pass.BACKWARD)
    )
    free = Cost(time_s=0.1, energy_j=30.0, time_change=0.0, energy_change=0.0)
    return Plan(
        evidence=Evidence.SIMULATED,
        gpu=gpu or GpuInfo(name="RTX 3080 Ti", power_limit_w=350.0),
        step=Step(name="small", kernels=kernels, order=order, modules=modules),
        objective=Objective.WASTE,
        max_slowdown=0.05,
        granularity=Granularity.KERNEL,
        aggregate=Aggregate.GLOBAL,
        baseline=AUTO,
        chosen=Strategy.ACHIEVABLE,
        arms=(
            Arm(Strategy.AUTO, free, Status.BASELINE),
            Arm(Strategy.ACHIEVABLE, free, Status.OPTIMAL),
        ),
        kernels={
            each.name: Choice(
                clocks=AUTO,
                time_change=0.0,
                energy_change=0.0,
                auto_time_s=each.count * launch_s,
                auto_energy_j=1.0,
            )
            for each in kernels
        },
        fixed=None,
        schedule=ClockSchedule(
            segments=segments,
            switches=sum(
                segments[at - 1].clocks != each.clocks for at, each in enumerate(segments)
            ),
            latency="assumed",
            latencies=LatencyTable.constant(0.01, call_s=5e-3),
            launch_s=(launch_s,) * len(order),
        ),
    )


def with_memory(made: Plan) -> Plan:
    """Return a plan that locks the memory where it locks the core."""
    if made.schedule is None:
        raise AssertionError("it has one")
    segments = tuple(
        msgspec.structs.replace(
            each,
            clocks=msgspec.structs.replace(
                each.clocks, mem_mhz=None if each.clocks.core_mhz is None else 5001
            ),
        )
        for each in made.schedule.segments
    )
    schedule = msgspec.structs.replace(made.schedule, segments=segments)
    return msgspec.structs.replace(made, schedule=schedule)


class Trains(torch.utils.data.Dataset[int]):
    """A data set that trains a model of its own in the worker, which imports it from here."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _at: int) -> int:
        return len(train(Model(), 4))


def line_of(step: PassedStep, energy_j: float | None, core_mhz: float | None = None) -> StepLine:
    """Return a step as its log has it."""
    return StepLine(
        gpu=0,
        step=step.number,
        steps=step.steps,
        began_s=step.began_s,
        time_s=step.time_s,
        state=str(step.state),
        planned=step.planned,
        asked=step.asked,
        hits=None,
        energy_j=energy_j,
        core_mhz=core_mhz,
    )


class Noted:
    """A stream that notes its marks, and the numbers of their steps."""

    def __init__(self) -> None:
        self.marks: list[int] = []
        self.steps: list[int] = []
        self.words: list[int] = []
        self.closed = False

    def mark(self, word: int) -> None:
        self.marks.append(mark_of(word))
        self.steps.append(word >> 16)
        self.words.append(word)

    def count(self, steps: int) -> None:
        self.words.append(-steps)

    def close(self) -> None:
        self.closed = True
