"""Traces of one GPU that trains, made anew with random sizes, with what profilers do to them."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

T0_US = 1_700_000_000_000_000.0
PASSES = ("forward", "backward", "optimizer")
_ASKS_US = 5.0  # the host for a kernel


@dataclass(kw_only=True)
class TracedRun:
    """A trace under construction, and what is true of it.

    Attributes:
        taken_us: Of each pass of one microbatch, and of the optimizer.
        period_us: From one step's first kernel to the next one's.
        behind_us: How far the GPU is behind its host as profiling begins.
    """

    random: random.Random
    steps: int
    microbatches: int
    kernels: Mapping[str, int]
    taken_us: Mapping[str, float]
    gap_us: float
    behind_us: float
    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 0

    @property
    def period_us(self) -> float:
        """From one step's begin to the next one's."""
        passes = self.taken_us["forward"] + self.taken_us["backward"]
        return self.microbatches * passes + self.taken_us["optimizer"] + self.gap_us

    def host(self, name: str, begins_us: float, lasts_us: float, **more: Any) -> None:
        """Add a range of the host."""
        cat = "user_annotation" if "#" in name else "cpu_op"
        event = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "args": {}}
        self.events.append({**event, "ts": begins_us, "dur": lasts_us, **more})

    def kernel(
        self,
        name: str,
        asked_us: float | None,
        begins_us: float,
        lasts_us: float,
        *,
        tid: int = 1,
        cat: str = "kernel",
        **args: Any,
    ) -> dict[str, Any]:
        """Add work of the GPU, and the call that asked for it unless that is not in the trace."""
        self.correlation += 1
        args = {"correlation": self.correlation, "stream": 7, "device": 0, **args}
        if asked_us is not None:
            call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1}
            numbered = {"correlation": self.correlation}
            self.events.append({**call, "tid": tid, "ts": asked_us, "dur": 2.0, "args": numbered})
        event = {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": f"stream {args['stream']}"}
        self.events.append({**event, "ts": begins_us, "dur": lasts_us, "args": args})
        return self.events[-1]

    def pieces(self) -> Sequence[str]:
        """The passes of a step, in order."""
        return [*PASSES[:2] * self.microbatches, "optimizer"]

    def begins_us(self, step: int) -> float:
        """When a step's first kernel begins."""
        return T0_US + self.behind_us + step * self.period_us

    def asked_us(self, step: int) -> float:
        """When the host begins a step: as often as the GPU does, for ever ahead of it."""
        return T0_US + step * self.period_us

    def named(self, name: str) -> list[dict[str, Any]]:
        """Return kernels of a name, or of a pass."""
        kernels = [event for event in self.events if event["cat"] == "kernel"]
        return [e for e in kernels if name in {e["name"], e["name"].rpartition("_")[0]}]

    def trace(
        self, *, rank: int | None = 0, world: int = 1, gpu: str | None = "NVIDIA A100-SXM4-80GB"
    ) -> dict[str, Any]:
        """Return the trace as it stands."""
        about = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": world}}
        devices = {} if gpu is None else {"deviceProperties": [{"id": 0, "name": gpu}]}
        return {"schemaVersion": 1, **devices, **about, "traceEvents": list(self.events)}


def traced_run(
    seed: int, *, steps: int | None = None, marks: bool = True, microbatches: int | None = None
) -> TracedRun:
    """Make a run of a few steps.

    Args:
        seed: Of its sizes.
        steps: How many are traced; ``None`` for some.
        marks: Whether the profiler marks steps.
        microbatches: That a step takes; ``None`` for one or a few.
    """
    of = random.Random(seed)  # noqa: S311 - sizes, no secrets
    counts = {"forward": of.randint(2, 40), "backward": of.randint(2, 60)}
    counts["optimizer"] = of.randint(1, 9)
    longest_us = {"forward": 2e4, "backward": 4e4, "optimizer": 5e3}
    # Whole microseconds: of a time since 1970 a float has a quarter of one.
    taken_us = {
        name: float(count * of.randint(round(0.2 * most / count), round(most / count)))
        for (name, count), most in zip(counts.items(), longest_us.values(), strict=True)
    }
    run = TracedRun(
        random=of,
        steps=of.randint(2, 6) if steps is None else steps,
        microbatches=of.choice((1, 1, 2, 4)) if microbatches is None else microbatches,
        kernels=counts,
        taken_us=taken_us,
        gap_us=float(of.randint(0, 100)),
        behind_us=float(of.randint(100, 20_000)),
    )
    for step in range(run.steps):
        asked_us, now_us = run.asked_us(step), run.begins_us(step)
        if marks:
            run.host(f"ProfilerStep#{step + 3}", asked_us, run.period_us - 1.0)
        asked_us += 10.0
        for name in run.pieces():
            count, tid = run.kernels[name], 2 if name == "backward" else 1
            each_us = run.taken_us[name] / count
            frame = {
                "forward": "aten::linear",
                "backward": "autograd::engine::evaluate_function: AddmmBackward0",
                "optimizer": "Optimizer.step#AdamW.step",
            }[name]
            run.host(frame, asked_us, (count + 1) * _ASKS_US, tid=tid)
            for at in range(count):
                run.kernel(
                    f"{name}_{at}", asked_us + (at + 0.5) * _ASKS_US, now_us, each_us - 1.0, tid=tid
                )
                now_us += each_us
            asked_us += (count + 2) * _ASKS_US
    return run
