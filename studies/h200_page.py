"""Turns results of `studies/h200.py` into docs/evidence/h200/README.md.

python studies/h200_page.py RESULTS.json [RESULTS.json ...]
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from underclock.records import Pass

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "h200" / "README.md"

_HEAD = """# Real kernels on an H200

Every number on this page is **measured**, on one NVIDIA H200, read-only: no clock, limit or mode
was set, so everything is at auto clocks. Locking clocks has not been tried on real hardware.

Driver {driver}, PyTorch {torch}, power limit {limit_w:g} W, {date}. Reproduce with

    {read_only}
    python studies/h200_page.py results.json

The machine is shared and virtual: neighbours' heat and the host's power budget are not ours to see.

## Try it without an H200

The tables beside this page (`xl`, `layer`, `small`, `llama`) hold every kernel as it ran alone,
with clocks, event reasons and utilisation read meanwhile. Commands read them anywhere, and say
*replayed*: they were measured elsewhere.

    underclock breakdown docs/evidence/h200/xl.csv
    underclock predict docs/evidence/h200/small.csv --max-slowdown 1%
    underclock plan docs/evidence/h200/layer.csv

A table knows isolated kernels only, so shares differ by up to five points from those below, which
are settled on the whole step. There is nothing to plan in them: only auto clocks were measured, and
the plan says so. Other clocks were measured since by [steering](steering.md), nothing set.
"""


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table; every column but the first is right-aligned."""
    names = list(header)
    lines = ["| " + " | ".join(names) + " |", "|---|" + "---:|" * (len(names) - 1)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def percent(fraction: float, digits: int = 1) -> str:
    """Write a fraction."""
    return f"{100 * fraction:.{digits}f} %"


def tracing(parts: Mapping[str, Any]) -> str:
    """Say what tracing and measuring took, and left behind."""
    rows = [
        (
            name.split(":")[-1],
            whole["distinct"],
            whole["launches"],
            percent(named(whole)),
            f"{whole['trace_s']:.1f} s",
            f"{whole['measure_s']:.0f} s",
            f"{whole['speed_before_ms'][0]['median']:.2f}",
            f"{whole['speed_after_ms']['median']:.2f}",
            f"{whole['speed_after_measuring_ms']['median']:.2f}",
        )
        for name, whole in parts.items()
    ]
    head = (
        *("step", "kernels", "launches", "named", "tracing", "measuring"),
        *("before", "traced", "measured"),
    )
    return (
        "## Tracing and measuring\n\n"
        "The step's own time is the median of up to 60 steps as its user runs it, in ms: before "
        "anything, after tracing, and after measuring. Measuring includes capturing the step "
        "again, warming the GPU, and the whole step in situ. *Named* is the share of the isolated "
        "kernels' time that has an operator and a pass (wanted 98 %).\n\n"
        + table(head, rows)
        + "\nWanted: a 24-layer step traced in 60 s, its distinct kernels measured at one clock "
        "pair in 3 min, the step's own speed unchanged.\n"
    )


def kept(parts: Mapping[str, Any]) -> str:
    """Say whether the state survived."""
    rows = [
        (name.split(":")[-1], _yes(w["state_kept_tracing"]), _yes(w["state_kept_measuring"]))
        for name, w in parts.items()
        if w.get("state_checked", True)
    ]
    return (
        "## The user's state\n\nA checksum over every byte of every live GPU tensor, before and "
        "after. `make gpu` compares parameters, moments, buffers, gradients and generators one by "
        "one, also after an interruption.\n\n"
        + table(("step", "kept by tracing", "kept by measuring"), rows)
    )


def _yes(value: object) -> str:
    return "not checked" if value is None else ("yes" if value else "**no**")


def repeatability(rows: list[dict[str, Any]], windows: int) -> str:
    """Compare aligned with unaligned windows."""
    body = table(
        ("kernel", "at the cap", "time", "power", "time CV", "energy CV", "unaligned power CV"),
        [
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
        ],
    )
    worst = {
        capped: (
            max(r["time_cv"] for r in rows if r["capped"] is capped),
            max(r["energy_cv"] for r in rows if r["capped"] is capped),
        )
        for capped in (False, True)
    }
    return (
        f"## Repeatability\n\n{windows} windows of 1.5 s each, every one with the kernel isolated "
        "anew, begun and ended at a step of the energy counter; then as many in which the counter "
        "is read whenever 1.5 s are over.\n\n"
        + body
        + f"\nWorst off the cap: time {percent(worst[False][0], 3)}, energy "
        f"{percent(worst[False][1], 2)} (wanted 0.1 %, 0.5 %). Worst at the cap: time "
        f"{percent(worst[True][0], 3)}, energy {percent(worst[True][1], 2)} (wanted 1.2 %, 1.2 %). "
        "Windows that are not aligned err by up to "
        f"{percent(max(r['unaligned_power_cv'] for r in rows), 1)}, where a step of the counter "
        "falls just inside one window and just outside the next.\n"
    )


def closure(parts: Mapping[str, Any], stretches: Mapping[str, Any]) -> str:
    """Compare isolated kernels with the whole step."""
    rows = []
    for name, whole in parts.items():
        breakdown = whole["breakdown"]
        rows.append(
            (
                name.split(":")[-1],
                f"{breakdown['time_s'] * 1e3:.2f} ms",
                f"{breakdown['energy_j']:.2f} J",
                f"{breakdown['closure']['time']:.4f}",
                f"{breakdown['closure']['energy']:.4f}",
                percent(breakdown["capped_share"]),
            )
        )
    off = [
        (
            name.split(":")[-1],
            row["kernels"],
            f"{row['isolated_s'] * 1e3:.3f} ms",
            f"{row['stretch_s'] * 1e3:.3f} ms",
            f"{row['isolated_s'] / row['stretch_s']:.4f}",
        )
        for name, some in stretches.items()
        for row in some
    ]
    return (
        "## Closure at auto clocks\n\nIsolated kernels, times their counts, over the whole step "
        "replayed from its graph.\n\n"
        + table(
            ("step", "in situ", "in situ", "time closure", "energy closure", "time at the cap"),
            rows,
        )
        + "\nThe power cap is what does not close: it averages over about 100 ms, so in the step a "
        "product borrows power from the kernels around it and runs at a higher clock than alone. "
        "Kernels away from the cap close by themselves: run in the step's order in one graph, "
        "against their isolated times (wanted within 1 % in time). Longer windows close better at "
        "the cap: with 1.5 s after 0.5 s, instead of 1 s after 0.3 s, the layer closed to 1.030 in "
        "time and 0.961 in energy.\n\n"
        + table(("step", "launches", "isolated", "together", "closure"), off)
    )


def breakdowns(parts: Mapping[str, Any]) -> str:
    """Say where the energy goes."""
    text = (
        "## Where the energy goes\n\nBounds are told **by utilisation, at the clocks of kernels "
        "alone**: a part that is busy at least half of the time bounds a kernel; where none is, "
        "latency does. That does not say whose time follows the core clock, and so not where a "
        "lower clock costs nothing. With an H200's clock steered by what kernels run beside "
        "(2026-11-22), times of layer norm, softmax and gelu, for which DRAM is busiest, follow it "
        "with an exponent of 0.85 to 0.87, those of a gather, a sum and a strided copy with 0.10 "
        "to 0.14. Nor are these the clocks of the step: at its power limit all kernels run at one "
        "clock (see the log below). `underclock breakdown` tells how times follow the core clock "
        "from samples at several clocks; these have one.\n"
    )
    for name, whole in parts.items():
        breakdown = whole["breakdown"]
        text += f"\n### {name.split(':')[-1]}\n\n"
        rows = [
            (part["name"], part["launches"], percent(part["time_share"]),
             percent(part["energy_share"]))
            for key in ("by_pass", "by_bound")
            for part in breakdown[key]
        ]  # fmt: skip
        text += table(("part", "launches", "of time", "of energy"), rows)
    return text


def alike(parts: Mapping[str, Any]) -> str:
    """Say how far launches of one identity differ."""
    text = (
        "## Equal identities cost the same\n\nUp to three launches of each identity (first, "
        "middle, last of the step), each isolated with the data it meets there; the spread is "
        "greatest less least mean over all. *Again* is how far one and the same launch differs "
        "between two visits, the worst of its identity: at the power cap that is as much. What is "
        "left comes from the data: the passes of a sort meet other digits, and an optimizer's "
        "launches of one grid hold other parameters.\n"
    )
    for name, rows in parts.items():
        long = [row for row in rows if row["time_us"] >= _LONG_US]
        spreads = sorted(row["spread"] for row in long)
        worst = sorted(rows, key=lambda row: -row["spread"])[:5]
        text += (
            f"\n{name.split(':')[-1]}: {len(rows)} identities with several launches. Of the "
            f"{len(long)} that take at least {_LONG_US:g} µs the median spread is "
            f"{percent(spreads[len(spreads) // 2], 2)}, the greatest {percent(spreads[-1], 2)}. "
            "Greatest of all:\n\n"
        )
        text += table(
            ("kernel", "launches", "time", "spread", "again"),
            [
                (
                    r["kernel"],
                    r["count"],
                    f"{r['time_us']:.2f} µs",
                    percent(r["spread"], 2),
                    percent(r["same_again"], 2),
                )
                for r in worst
            ],
        )
    return text


_LONG_US = 20.0


def log(parts: Mapping[str, Any]) -> str:
    """Say what the clock log shows."""
    text = "## Clock log\n\n`underclock watch` while the step is replayed over and over.\n\n"
    rows = []
    for name, readings in parts.items():
        least, mean, most = readings["core_mhz"]
        rows.append(
            (
                name.split(":")[-1],
                readings["entries"],
                f"{readings['rate_hz']:.0f} Hz",
                f"{readings['step_s'] * 1e3:.2f} ms",
                f"{least:.0f} - {mean:.0f} - {most:.0f} MHz",
                f"{readings['power_w'][1]:.0f} W",
                f"0x{readings['throttle_reasons']:x}",
            )
        )
    head = ("step", "readings", "rate", "step time", "core clock", "power", "reasons")
    return text + table(head, rows)


def named(whole: Mapping[str, Any]) -> float:
    """Return the share of the isolated kernels' time that has an operator and a pass."""
    kernels = whole["kernels"]
    total = sum(k["time_s"] * k["count"] for k in kernels)
    known = [k for k in kernels if k["operator"] and Pass(k["pass"]) is not Pass.OTHER]
    return float(sum(k["time_s"] * k["count"] for k in known) / total)


def warned(parts: Mapping[str, Any]) -> str:
    """Repeat what was said of the steps."""
    text = (
        "## What was said of the steps\n\nWarnings of `trace` and `measure`, those that every "
        "step had left out.\n"
    )
    for name, whole in parts.items():
        others = [set(other["warnings"]) for other in parts.values()]
        mine = [w for w in whole["warnings"] if w not in set.intersection(*others)]
        if mine:
            text += f"\n{name.split(':')[-1]}:\n\n" + "".join(f"- {word}\n" for word in mine)
    return text


def main() -> None:
    """Merge results, later files over earlier ones, and write the page."""
    results: dict[str, Any] = {}
    commands = []
    for path in sys.argv[1:]:
        part = msgspec.json.decode(Path(path).read_bytes())
        words = [word for word in part["command"].split() if "=" in word]
        commands.append(f"{words[0]} python studies/h200.py results.json {' '.join(words[1:])}")
        results |= part

    def of(kind: str) -> dict[str, Any]:
        return {k: v for k, v in results.items() if k.startswith(kind + " ")}

    head = _HEAD.format(**results, read_only="\n    ".join(commands))
    wholes = of("whole")
    parts = [head, tracing(wholes), kept(wholes)]
    parts += [repeatability(rows, results["windows"]) for rows in of("repeat").values()]
    parts += [closure(wholes, of("stretch")), breakdowns(wholes)]
    if of("twins"):
        parts.append(alike(of("twins")))
    parts += [log(of("watch")), warned(wholes)]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
