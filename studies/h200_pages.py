"""Turns results that studies wrote on real H200s into the tables of docs/evidence/h200.

python studies/h200_pages.py kernels RESULTS.json ...      of h200.py: README.md
python studies/h200_pages.py held RESULTS.json ...         of held.py: held.md
python studies/h200_pages.py parallel FOLDER RUN_LOGS      of parallel.py: parallel.md
"""

import dataclasses
import gzip
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pages import fill, markdown
from rank_steps import RankStep, steps_s
from underclock.core.tracing.host import bytes_of
from underclock.core.tracing.profile import activities, stream_waits
from underclock.core.tracing.streams import streams
from underclock.records import Pass
from underclock.records.launches import TracedActivity
from underclock.runtime.conductor.log import last_run, read_log, summary_of

_LONG_US = 20.0
_HELD = {
    "xl": "GPT-3 XL, 24 layers, eager",
    "xl_graph": "the same, one captured graph",
    "small_compiled": "GPT-3 125 M, `torch.compile`",
    "small_blocks": "GPT-3 125 M, compiled block by block",
}
_RANKS, _MS = 2, 1e3
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
}
_STEPS = {"ddp": "DDP", "fsdp": "FSDP2"}


def percent(fraction: float, digits: int = 1) -> str:
    """Write a fraction."""
    return f"{100 * fraction:.{digits}f} %"


def kernels(*files: str) -> None:
    """Merge results of steps, later files over earlier ones, and fill their page."""
    results: dict[str, Any] = {}
    for path in files:
        results |= json.loads(Path(path).read_text())

    def of(kind: str) -> dict[str, Any]:
        return {k.split(":")[-1]: v for k, v in results.items() if k.startswith(kind + " ")}

    wholes = of("whole")
    parts = {
        "tracing": _tracing(wholes),
        "state": _state(wholes),
        "repeats": "\n\n".join(map(_repeatability, of("repeat").values())),
        "closure": _closure(wholes),
        "stretches": _stretches(of("stretch")),
        "energy": "\n\n".join(_breakdowns(wholes)),
        "alike": "\n\n".join(_alike(of("twins"))),
    }
    fill("h200/README", {mark: part for mark, part in parts.items() if part})


def _tracing(parts: Mapping[str, Any]) -> str:
    """Say what tracing and measuring took, and left behind."""
    rows: list[Sequence[object]] = [
        (
            *("step", "kernels", "launches", "named", "tracing", "measuring"),
            *("before", "traced", "measured"),
        )
    ]
    for name, whole in parts.items():
        names = ("speed_before_ms", "speed_after_ms", "speed_after_measuring_ms")
        rows.append(
            (
                name,
                whole["distinct"],
                whole["launches"],
                percent(named(whole)),
                f"{whole['trace_s']:.1f} s",
                f"{whole['measure_s']:.0f} s",
                *(f"{_median(whole[each]):.2f}" for each in names),
            )
        )
    return markdown(rows)


def _median(speed: Any) -> float:  # noqa: ANN401 - files of 2026-11-21 have the median alone
    first = speed[0] if isinstance(speed, list) else speed
    return float(first["median"] if isinstance(first, dict) else first)


def _state(parts: Mapping[str, Any]) -> str:
    """Say whether the state survived."""
    words = {None: "not checked", True: "yes", False: "**no**"}
    rows = [("step", "kept by tracing", "kept by measuring")]
    for name, w in parts.items():
        if w.get("state_checked", True):
            rows.append((name, words[w["state_kept_tracing"]], words[w["state_kept_measuring"]]))
    return markdown(rows)


def _repeatability(rows: list[dict[str, Any]]) -> str:
    """Compare aligned with unaligned windows."""
    head = ("kernel", "at the cap", "time", "power", "time CV", "energy CV", "unaligned power CV")
    lines = [
        (
            row["kernel"],
            "yes" if row["capped"] else "no",
            f"{row['time_us']:.2f} µs",
            f"{row['power_w']:.0f} W",
            percent(row["time_cv"], 3),
            percent(row["energy_cv"], 2),
            percent(row["unaligned_power_cv"], 2),
        )
        for row in rows
    ]
    worst = []
    for where, capped in (("off", False), ("at", True)):
        some = [row for row in rows if row["capped"] is capped]
        time, energy = (max(row[name] for row in some) for name in ("time_cv", "energy_cv"))
        worst.append(f"{where} the cap: time {percent(time, 3)}, energy {percent(energy, 2)}")
    return f"{markdown([head, *lines])}\n\nWorst {'; '.join(worst)}."


def _closure(parts: Mapping[str, Any]) -> str:
    """Compare isolated kernels with the whole step."""
    rows = [("step", "in situ", "in situ", "time closure", "energy closure", "time at the cap")]
    for name, whole in parts.items():
        one = whole["breakdown"]
        rows.append(
            (
                name,
                f"{one['time_s'] * 1e3:.2f} ms",
                f"{one['energy_j']:.2f} J",
                f"{one['closure']['time']:.4f}",
                f"{one['closure']['energy']:.4f}",
                percent(one["capped_share"]),
            )
        )
    return markdown(rows)


def _stretches(stretches: Mapping[str, Any]) -> str:
    """Compare kernels away from the cap with themselves run in the step's order."""
    rows = [("step", "launches", "isolated", "together", "closure")]
    for name, some in stretches.items():
        for row in some:
            alone_s, together_s = row["isolated_s"], row["stretch_s"]
            times = f"{alone_s * 1e3:.3f} ms", f"{together_s * 1e3:.3f} ms"
            rows.append((name, str(row["kernels"]), *times, f"{alone_s / together_s:.4f}"))
    return markdown(rows)


def _breakdowns(parts: Mapping[str, Any]) -> Iterator[str]:
    """Say where the energy goes."""
    for name, whole in parts.items():
        rows: list[Sequence[object]] = [("part", "launches", "of time", "of energy")]
        for key in ("by_pass", "by_bound"):
            for part in whole["breakdown"][key]:
                shares = percent(part["time_share"]), percent(part["energy_share"])
                rows.append((part["name"], part["launches"], *shares))
        yield f"### {name}\n\n{markdown(rows)}"


def _alike(parts: Mapping[str, Any]) -> Iterator[str]:
    """Say how far launches of one identity differ."""
    for name, rows in parts.items():
        long = sorted(row["spread"] for row in rows if row["time_us"] >= _LONG_US)
        worst = sorted(rows, key=lambda row: -row["spread"])[:5]
        yield (
            f"{name}: {len(rows)} identities with several launches. Of the {len(long)} that take "
            f"at least {_LONG_US:g} µs the median spread is {percent(long[len(long) // 2], 2)}, "
            f"the greatest {percent(long[-1], 2)}. Greatest of all:"
        )
        lines: list[Sequence[object]] = [("kernel", "launches", "time", "spread", "again")]
        for row in worst:
            spreads = percent(row["spread"], 2), percent(row["same_again"], 2)
            lines.append((row["kernel"], row["count"], f"{row['time_us']:.2f} µs", *spreads))
        yield markdown(lines)


def named(whole: Mapping[str, Any]) -> float:
    """Return the share of the isolated kernels' time that has an operator and a pass."""
    kernels = whole["kernels"]
    total = sum(k["time_s"] * k["count"] for k in kernels)
    known = [k for k in kernels if k["operator"] and Pass(k["pass"]) is not Pass.OTHER]
    return float(sum(k["time_s"] * k["count"] for k in known) / total)


def held(*files: str) -> None:
    """Fill the page of plans held dry; a step's cost of marks is that of its first file."""
    found = [json.loads(Path(name).read_text()) for name in files]
    heads = ("step", "run", "takes", "marks", "changes", "followed", "median", "99 of 100")
    boundaries: list[Sequence[object]] = [(*heads, "conductor")]
    costs: list[Sequence[object]] = [
        ("step", "pairs of blocks", "steps in a block", "change of its time", "95 % interval")
    ]
    for name, said in _HELD.items():
        runs = [each[name] for each in found if name in each]
        if any("failed" in one for one in runs):
            raise SystemExit(f"{name} failed: {runs}")
        boundaries += [_boundaries(said, number, one) for number, one in enumerate(runs, start=1)]
        costs += [_cost(said, one) for one in runs if one["change"] is not None][:1]
    fill("h200/held", {"boundaries": markdown(boundaries), "costs": markdown(costs)})


def _boundaries(said: str, number: int, one: dict[str, Any]) -> tuple[object, ...]:
    long = one["long"]
    followed = f"{long['followed']} of {long['steps']}"
    errors = f"{_MS * long['error_p50_s']:.3f} ms", f"{_MS * long['error_p99_s']:.2f} ms"
    takes, share = f"{_MS * long['step_s']:.1f} ms", percent(long["conductor"])
    return said, number, takes, long["marks"], one["changes"], followed, *errors, share


def _cost(said: str, one: dict[str, Any]) -> tuple[object, ...]:
    half = 1.96 * one["standard_error"]
    low, high = (f"{100 * (one['change'] + side * half):+.3f}" for side in (-1, 1))
    change = f"{100 * one['change']:+.3f} %"
    return said, len(one["plain_s"]), one["steps"], change, f"{low} to {high} %"


def parallel(where: str, logs: str) -> None:
    """Fill the page of steps of two ranks."""
    folder = Path(where)
    predicted: list[Sequence[object]] = [
        ("step", "launches", "collectives", "step", "predicted", "off", "off, of single")
    ]
    elsewhere: list[Sequence[object]] = [
        (
            "step",
            "predicted",
            "off",
            "kernels known without ranks",
            "collectives alone",
            "in the step",
        )
    ]
    followed: list[Sequence[object]] = [
        ("step", "steps followed, of", "median", "99 of 100", "conductor, of a core")
    ]
    slack = []
    for name, said in _STEPS.items():
        predicted.append((said, *_predicted(folder, name)))
        elsewhere.append((said, *_from_elsewhere(folder, name)))
        followed.append((said, *_followed(Path(logs) / f"run.{name}.jsonl")))
        slack_s = _slack_s(folder, name)
        slack.append(f"- {said}: " + ", ".join(f"{_MS * each:.1f}" for each in slack_s))
    parts = {"predicted": markdown(predicted), "elsewhere": markdown(elsewhere)}
    parts |= {"slack": "\n".join(slack), "followed": markdown(followed)}
    fill("h200/parallel", parts)


def _read(folder: Path, name: str, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        gzip.decompress((folder / f"{name}.rank{rank}.json.gz").read_bytes())
    )
    return found


@cache
def _ranks(folder: Path, name: str) -> list[list[tuple[tuple[TracedActivity, ...], RankStep]]]:
    """Return launches and rank of both, profile by profile."""
    found = []
    read = [_read(folder, name, number) for number in range(_RANKS)]
    for traces in zip(*(each["profiles"] for each in read), strict=True):
        both = []
        for trace in traces:
            seen = activities(trace)
            of = tuple(i for i, one in enumerate(seen) if one.pass_ is Pass.COMMUNICATION)
            rank = RankStep(streams=streams(seen, stream_waits(trace)), collectives=of)
            both.append((seen, rank))
        found.append(both)
    return found


def _with(rank: RankStep, duration_s: np.ndarray[Any, Any]) -> RankStep:
    return dataclasses.replace(
        rank, streams=dataclasses.replace(rank.streams, duration_s=duration_s)
    )


def _plain_s(folder: Path, name: str) -> float:
    first = _read(folder, name, 0)
    return float(statistics.median(first["step_s"] + first["again_s"]))


def _medians(profiles: Sequence[Sequence[tuple[Any, RankStep]]]) -> list[RankStep]:
    """Return the ranks of the last profile, whose launches take what they take in the middle."""
    return [
        _with(
            profiles[-1][number][1],
            np.median([both[number][1].streams.duration_s for both in profiles], axis=0),
        )
        for number in range(_RANKS)
    ]


def _predicted(folder: Path, name: str) -> tuple[str, ...]:
    profiles = _ranks(folder, name)
    plain_s = _plain_s(folder, name)
    (predicted_s, *_) = steps_s(_medians(profiles))
    singles = [steps_s([rank for _, rank in both])[0] / plain_s - 1 for both in profiles]
    seen, rank = profiles[-1][0]
    return (
        str(len(seen)),
        str(len(rank.collectives)),
        f"{_MS * plain_s:.2f} ms",
        f"{_MS * predicted_s:.2f} ms",
        f"{100 * (predicted_s / plain_s - 1):+.1f} %",
        ", ".join(f"{100 * off:+.1f}" for off in singles) + " %",
    )


def _from_elsewhere(folder: Path, name: str) -> tuple[str, ...]:
    """Predict a step from kernels without ranks and from collectives alone."""
    profiles = _ranks(folder, name)
    plain_s = _plain_s(folder, name)
    alone: dict[object, list[float]] = {}
    for trace in _read(folder, "alone", 0)["profiles"][1:]:
        for one in activities(trace):
            alone.setdefault(_key(one), []).append(one.duration_s)
    sizes: dict[str, list[tuple[int, float]]] = {}
    for key, taken_s in _read(folder, name, 0)["collectives"].items():
        collective, size = key.split()
        sizes.setdefault(collective, []).append((int(size), statistics.median(taken_s)))
    known_s = all_s = alone_s = 0.0
    ranks = []
    for (seen, _), rank in zip(profiles[-1], _medians(profiles), strict=True):
        durations = rank.streams.duration_s.copy()
        for i, one in enumerate(seen):
            taken = sizes.get(_COLLECTIVES.get(one.operator.removeprefix("nccl::"), ""))
            if one.pass_ is Pass.COMMUNICATION:
                if taken:
                    durations[i] = _interpolated(taken, one)
                alone_s += durations[i] / _RANKS
                continue
            all_s += durations[i]
            if _key(one) in alone:
                known_s += durations[i]
                durations[i] = statistics.median(alone[_key(one)])
        ranks.append(_with(rank, durations))
    medians = [rank.streams.duration_s[list(rank.collectives)] for rank in _medians(profiles)]
    (predicted_s, *_) = steps_s(ranks)
    return (
        f"{_MS * predicted_s:.2f} ms",
        f"{100 * (predicted_s / plain_s - 1):+.1f} %",
        f"{100 * known_s / all_s:.0f} %",
        f"{_MS * alone_s:.1f} ms",
        f"{_MS * np.minimum(*medians).sum():.1f} ms",
    )


def _key(one: TracedActivity) -> object:
    return one.kind, one.function, one.grid, one.block, one.operator, one.shapes


def _interpolated(taken: Sequence[tuple[int, float]], one: TracedActivity) -> float:
    """Return what a collective of as many bytes takes alone, the larger of what goes in and out."""
    sizes, times_s = zip(*sorted(taken), strict=True)
    moved = bytes_of(one.operator, one.shapes) or 0.0
    whole = moved / 2 if "allreduce" in one.operator else moved * 2 / 3
    if whole > sizes[-1]:
        return float(times_s[-1] * whole / sizes[-1])
    return float(np.interp(whole, sizes, times_s))


def _slack_s(folder: Path, name: str) -> list[float]:
    _, rank = _ranks(folder, name)[-1][0]
    slack_s: list[float] = rank.streams.slack_s()[list(rank.collectives)].tolist()
    return slack_s


def _followed(log: Path) -> tuple[str, ...]:
    said = summary_of(last_run(read_log(log)))
    if said.error_p50_s is None or said.error_p99_s is None or said.conductor is None:
        raise SystemExit(f"{log} holds no run that was followed")
    errors = f"{_MS * said.error_p50_s:.3f} ms", f"{_MS * said.error_p99_s:.2f} ms"
    return f"{said.followed} of {said.steps}", *errors, percent(said.conductor)


if __name__ == "__main__":
    PAGES: dict[str, Callable[..., None]]
    PAGES = {"kernels": kernels, "held": held, "parallel": parallel}
    PAGES[sys.argv[1]](*sys.argv[2:])
