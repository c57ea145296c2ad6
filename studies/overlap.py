"""What plans make of collectives beside passes: DDP's and FSDP's as two H200s ran them.

Steps are those recorded in tests/data/traces/ranks, their costs at other clocks a steered H200's
(docs/evidence/h200/steered-xl-5.json). ``--quick`` plans one step only, and fills no page.
"""

import argparse
import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from job_costs import instruction_costs, job_cost
from pages import EVIDENCE, fill, markdown, percent
from underclock.app.planning import costs_of
from underclock.core.job.frontiers import stage_profiles
from underclock.core.job.joined import with_profiles
from underclock.core.job.network import network_of
from underclock.core.job.planning import JobGoal, plan_job
from underclock.core.job.timeline import auto_clocks
from underclock.core.tracing.job_traces import traced_job
from underclock.core.tracing.rank_trace import rank_trace
from underclock.records import Cost
from underclock.records.job import Instruction, InstructionKind, Job, Profile, RankClocks
from underclock.records.measured import SampleSet

RECORDED = Path(__file__).parents[1] / "tests" / "data" / "traces" / "ranks"
SAMPLES = EVIDENCE / "h200" / "steered-xl-5.json"
SLOWER = (1, 4, 16, 32)  # links than NVLink: so many times as long for all collectives
LATENCIES_S = (0.0, 6e-3)
BUDGET = 0.01
WAITING_W = 148.0  # of an H200 at auto
MET = {InstructionKind.COLLECTIVE, InstructionKind.COPY}


def recorded(name: str, profiles: Mapping[str, Profile]) -> Job:
    """Return what two GPUs ran, with costs at every clock."""
    traces = []
    for rank in (0, 1):
        body = gzip.decompress((RECORDED / f"{name}.rank{rank}.json.gz").read_bytes())
        trace = json.loads(body)["trace"]
        end_us = max(event["ts"] + event.get("dur", 0.0) for event in trace["traceEvents"])
        step = {"ph": "X", "cat": "cpu_op", "name": "ProfilerStep#0", "tid": 0, "ts": 0.0}
        trace["traceEvents"].append({**step, "dur": end_us + 1.0})
        about = {"rank": rank, "world_size": 2}
        traces.append(rank_trace({**trace, "distributedInfo": about}, name))
    return with_profiles(traced_job(traces, workload=name, waiting_w=WAITING_W)[0], profiles)


def over_links(job: Job, slower: float) -> Job:
    """Return a job whose collectives take so many times as long."""

    def changed(each: Instruction) -> Instruction:
        return replace(each, time_s=(each.time_s or 0.0) * slower) if each.kind in MET else each

    ranks = (
        replace(rank, instructions=tuple(map(changed, rank.instructions))) for rank in job.ranks
    )
    return replace(job, ranks=tuple(ranks))


@dataclass(frozen=True)
class Whole:
    """A job whose passes are whole: what they wait for inside takes longer at lower clocks too."""

    job: Job
    passes: tuple[tuple[int | None, ...], ...]  # of each instruction of the cut job

    @classmethod
    def of(cls, cut: Job, known: Mapping[str, Profile]) -> "Whole":
        """Put parts of passes together again, each as long as until the next begins."""
        taken_s, _ = instruction_costs(cut, auto_clocks(cut))
        network = network_of(cut)
        begins_s, end_s = network.begins_s(taken_s).tolist(), float(network.iteration_s(taken_s))
        ranks, passes, used = [], [], {}
        for number, rank in enumerate(cut.ranks):
            own_s = begins_s[: len(rank.instructions)]
            del begins_s[: len(rank.instructions)]
            first = [
                i
                for i, each in enumerate(rank.instructions)
                if each.kind not in MET | {InstructionKind.REST}
            ]
            whole = []
            for i, until_s in zip(first, [*(own_s[i] for i in first[1:]), end_s], strict=True):
                each = rank.instructions[i]
                profile = known[f"stage 0 {each.kind}"]
                ratio = (until_s - own_s[i]) / profile.rows[profile.auto].time_s
                name = f"rank {number}, {each.kind}"
                used[name] = replace(profile, rows=tuple(r.scaled(ratio) for r in profile.rows))
                whole.append(replace(each, profile=name))
            ranks.append(replace(rank, instructions=tuple(whole)))
            passes.append(
                tuple(
                    None if each.kind in MET else sum(at <= i for at in first) - 1
                    for i, each in enumerate(rank.instructions)
                )
            )
        job = replace(cut, ranks=tuple(ranks), profiles=used, waits=())
        return cls(job, tuple(passes))

    def clocks(self, some: tuple[RankClocks, ...]) -> tuple[RankClocks, ...]:
        """Return clocks of whole passes for all of their parts."""
        return tuple(
            tuple(None if at is None else held[at] for at in which)
            for held, which in zip(some, self.passes, strict=True)
        )


def rows(name: str, profiles: Mapping[str, Profile]) -> Iterator[list[str]]:
    """Yield what is planned of a step, with passes whole and with passes cut."""
    for slower in SLOWER:
        job = over_links(recorded(name, profiles), slower)
        whole = Whole.of(job, profiles)
        for latency_s in LATENCIES_S:
            goal = JobGoal(max_slowdown=BUDGET, latency_s=latency_s, points=2)
            before, ours = plan_job(whole.job, goal), plan_job(job, goal)
            true = job_cost(job, whole.clocks(before.clocks), latency_s)
            auto_s = ours.promise.time_s / (1.0 + ours.promise.time_change)
            costs = (before.promise, true, ours.promise)
            yield [
                f"{name}, {slower}x" if not latency_s else "",
                f"{1e3 * auto_s:.1f} ms" if not latency_s else "",
                "free" if not latency_s else f"{1e3 * latency_s:g} ms",
                *map(_pair, costs),
            ]


def _pair(cost: Cost) -> str:
    return f"{percent(cost.time_change)}, {percent(cost.energy_change)}"


def main() -> None:
    """Plan both steps over links of several speeds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="One step only, printed.")
    quick = parser.parse_args().quick
    samples = msgspec.json.decode(SAMPLES.read_bytes(), type=SampleSet)
    table = costs_of(samples, None, raw=None, isolated=False).table
    found = stage_profiles(table, samples.order).profiles
    profiles = {f"stage 0 {kind}": profile for kind, profile in found.items()}
    head = [
        *("step, collectives as long", "auto", "switching"),
        *("whole: planned", "whole: what it comes to", "cut: planned"),
    ]
    every = [row for name in ("ddp", "fsdp")[quick:] for row in rows(name, profiles)]
    fill("jobs", {"beside": markdown([head, *every])}, whole=not quick)


if __name__ == "__main__":
    main()
