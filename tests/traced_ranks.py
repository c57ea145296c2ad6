"""Traces as Kineto writes them of ranks that run a job: for tests that make jobs of such traces."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from underclock.core.job.network import network_of
from underclock.records.job import COMPUTES, Instruction, InstructionKind, Job

SEND, RECEIVE = InstructionKind.SEND, InstructionKind.RECEIVE
FORWARD_S, BACKWARD_S = 0.012, 0.020
"""What a stage of `pipelined_training` waits instead of computing."""
_LETTERS = {"forward": "F", "backward": "B", "weights": "W"}
_S = 1e6  # of a trace's µs


def durations_s(job: Job) -> Any:
    """Return what every instruction of a job takes at auto."""
    return np.array(
        [
            each.time_s if each.profile is None else job.profiles[each.profile].rows[0].time_s
            for rank in job.ranks
            for each in rank.instructions
        ]
    )


def _x(cat: str, name: str, begins_s: float, ends_s: float, **args: Any) -> dict[str, Any]:
    args = {key.replace("_", " "): value for key, value in args.items()}
    stamp = {"ts": float(begins_s * _S), "dur": float((ends_s - begins_s) * _S)}
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, **stamp, "args": args}


class _Rank:
    """The events of one rank; its host asks for everything long before the GPU does it."""

    def __init__(self, job: Job, rank: int, *, gpu: bool) -> None:
        self.job, self.number, self.gpu = job, rank, gpu
        self.events: list[dict[str, Any]] = []
        self.now_s = 0.0  # of the host
        self.correlation = 0

    def work(self, name: str, begins_s: float, ends_s: float, **args: Any) -> None:
        """Ask for a kernel; without a GPU, run an operator."""
        if not self.gpu:
            self.events.append(_x("cpu_op", name, begins_s, ends_s, **args))
            return
        self.correlation += 1
        args["correlation"] = self.correlation
        self.events.append(
            _x("cuda_runtime", "cudaLaunchKernel", self.now_s, self.now_s + 1e-9, **args)
        )
        self.now_s += 1e-8
        self.events.append(_x("kernel", name, begins_s, ends_s, stream=7, **args))

    def passes(self, kind: str, begins_s: float, ends_s: float) -> None:
        """Run a pass, of two kernels."""
        frame = "aten::mm" if kind == "forward" else "autograd::engine::evaluate_function: X"
        if self.gpu:
            self.events.append(_x("cpu_op", frame, self.now_s, self.now_s + 3e-8))
        for half, (begun_s, done_s) in enumerate(pairwise(np.linspace(begins_s, ends_s, 3))):
            self.work(f"{kind}_{half}" if self.gpu else f"{frame} {half}", begun_s, done_s)

    def range(self, name: str, begun_s: float, ends_s: float) -> None:
        """Put a range around what was asked for since."""
        self.events.append(_x("user_annotation", name, begun_s, ends_s))

    def transfer(self, *, sends: bool, peer: int, begins_s: float, ends_s: float) -> None:
        """Send or receive."""
        asked_s = self.now_s if self.gpu else begins_s + 1e-7
        inputs = {"Concrete Inputs": ["", "", str(peer), "0"]}
        operator = _x("cpu_op", "c10d::send" if sends else "c10d::recv_", asked_s, asked_s + 1e-8)
        operator["args"] = inputs
        self.events.append(operator)
        if self.gpu:
            self.work("ncclDevKernel_SendRecv(Args)", begins_s, ends_s)
        else:
            self.range("gloo:send" if sends else "gloo:recv", asked_s, ends_s)

    def gather(self, group: str, begins_s: float, ends_s: float) -> None:
        """Take part in a collective."""
        if self.gpu:
            name = "ncclDevKernel_AllReduce_Sum_bf16(Args)"
            facts = {"Collective_name": "allreduce", "Process_Group_Name": group}
            self.work(name, begins_s, ends_s, **facts)
        else:
            self.range("gloo:all_reduce", begins_s, ends_s)


def _name(style: str, instruction: Instruction, stage: int) -> str:
    kind, microbatch = str(instruction.kind), instruction.microbatch
    return {
        "said": f"{kind} mb={microbatch} stage={stage}",
        "torch": f"PP:{stage}{_LETTERS.get(kind, '')}{microbatch}",
        "passes": f"{kind.capitalize()} {microbatch}",
    }[style]


def traces_of(
    job: Job, *, style: str | None = "said", gpu: bool = True, steps: int = 1, slower: float = 0.0
) -> list[dict[str, Any]]:
    """Return the traces that ranks leave of some steps of a job.

    Args:
        job: What they run.
        style: How ranges say which microbatch it is; ``None`` for no ranges.
        gpu: Whether there are GPUs, and NCCL, or else hosts and gloo.
        steps: How many are profiled.
        slower: By how much each step is than the one before, as a fraction.
    """
    network, plain_s = network_of(job), durations_s(job)
    ranks = [_Rank(job, at, gpu=gpu) for at in range(len(job.ranks))]
    begun_s = 1.0
    for number in range(steps):
        taken_s = plain_s * (1.0 + slower) ** number
        begins_s = network.begins_s(taken_s) + begun_s
        ends_s = network.ends_s(taken_s) + begun_s
        for rank in ranks:
            rank.now_s = begun_s
        _step(job, ranks, begins_s, ends_s, style)
        end_s = float(ends_s.max()) + 1e-3
        for rank in ranks:
            rank.range(f"ProfilerStep#{number}", begun_s - 1e-9, end_s)
        begun_s = end_s + 1e-3
    every = list(range(len(ranks)))
    return [
        {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}] if gpu else [],
            "distributedInfo": {
                "backend": "nccl" if gpu else "gloo",
                "rank": rank.number,
                "world_size": len(ranks),
                "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": every}],
            },
            "traceEvents": [{"ph": "M", "name": "process_name"}, *rank.events],
        }
        for rank in ranks
    ]


def _step(job: Job, ranks: list[_Rank], begins_s: Any, ends_s: Any, style: str | None) -> None:
    firsts = np.cumsum([0, *(len(rank.instructions) for rank in job.ranks)])
    met = _met(job)
    # Of waits: what goes out after an instruction, and what comes in before it.
    sends: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for wait in job.waits:
        sent_s = ends_s[firsts[wait.on_rank] + wait.on_instruction]
        span = {"begins_s": sent_s, "ends_s": sent_s + wait.lag_s}
        out = {"sends": True, "peer": wait.rank, **span}
        into = {"sends": False, "peer": wait.on_rank, **span}
        sends.setdefault((wait.on_rank, wait.on_instruction + 1), []).append(out)
        sends.setdefault((wait.rank, wait.instruction), []).append(into)
    stages = len({rank.stage for rank in job.ranks})
    for at, (line, rank) in enumerate(zip(ranks, job.ranks, strict=True)):
        free_s = 1.0
        for i, each in enumerate(rank.instructions):
            for transfer in sends.get((at, i), ()):
                line.transfer(**transfer)
            begin_s, end_s = begins_s[firsts[at] + i], ends_s[firsts[at] + i]
            begin_s += 1e-6 * (not line.gpu)  # a host is not that quick
            asked_s = line.now_s if line.gpu else begin_s
            others = [other for other in met.get(each.meeting, ()) if other != at]
            if each.kind in COMPUTES:
                line.passes(each.kind, begin_s, end_s)
                if style is not None:
                    name = _name(style, each, each.chunk * stages + rank.stage)
                    line.range(name, asked_s, line.now_s if line.gpu else end_s)
            elif each.kind in {SEND, RECEIVE}:
                line.transfer(
                    sends=each.kind is SEND, peer=others[0], begins_s=free_s, ends_s=end_s
                )
            elif each.kind is InstructionKind.COLLECTIVE:
                line.gather("/".join(map(str, sorted([at, *others]))), free_s, end_s)
            else:
                done_s = line.now_s + 1e-7 if line.gpu else end_s
                line.range("Optimizer.step#Adam.step", asked_s, done_s)
                line.work(str(each.kind), begin_s, end_s)
            line.now_s += 1e-7
            free_s = end_s


def _met(job: Job) -> dict[int | None, list[int]]:
    found: dict[int | None, list[int]] = {}
    for at, rank in enumerate(job.ranks):
        for each in rank.instructions:
            if each.meeting is not None:
                found.setdefault(each.meeting, []).append(at)
    return found


def laid_out(job: Job) -> Iterator[list[str]]:
    """Yield the passes of each rank, in order."""
    for rank in job.ranks:
        yield [str(each) for each in rank.instructions if each.kind in COMPUTES]
