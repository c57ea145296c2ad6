"""Prints tables of ordinary steps measured kernel by kernel, for docs/evidence/h200/ordinary.md.

    python studies/ordinary_page.py RESULTS.json ...

Takes what ``studies/h200.py RESULTS.json brief=ordinary.py:NAME speed=ordinary.py:NAME`` wrote.
"""

import json
import sys
from pathlib import Path
from typing import Any

NAMES = {
    "stock": "autocast, clipping, AdamW, scheduler",
    "scaled": "GradScaler",
    "loaded": "loader, pinned memory",
    "compiled": "`torch.compile`, loss read",
    "dropping": "dropout",
    "reading": "`loss.item()`",
    "convolving": "convolutions, `cudnn.benchmark`",
    "mixing": "mixture of experts (`nonzero`)",
    "low_rank": "LoRA",
    "recurring": "LSTM",
    "accumulating": "4 micro-batches, step only if finite",
}


def main() -> None:
    """Print them."""
    found: dict[str, dict[str, Any]] = {}
    speeds: dict[str, dict[str, Any]] = {}
    for path in sys.argv[1:]:
        for key, value in json.loads(Path(path).read_text()).items():
            kind, _, source = key.partition(" ")
            if kind in {"whole", "speed"}:
                (found if kind == "whole" else speeds)[source.rpartition(":")[2]] = value
    print("| step | kernels | with a cost | of the time | measured in | a kernel |", end="")
    print(" alone / in the step | state kept |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    for name, words in NAMES.items():
        if name in found:
            print("| " + " | ".join([words, *_measured(found[name])]) + " |")
    print()
    print("| step | before | traced | measured | after tracing | after measuring |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, words in NAMES.items():
        if name in speeds:
            print("| " + " | ".join([words, *_speed(speeds[name])]) + " |")


def _measured(whole: dict[str, Any]) -> list[str]:
    kernels = whole["kernels"]
    in_step_s = sum(s["time_s"] for s in whole["in_situ"]) / len(whole["in_situ"])
    alone_s = sum(kernel["time_s"] * kernel["count"] for kernel in kernels)
    costed = [k for k in kernels if k["time_s"] and k["energy_j"]]
    share = sum(k["time_s"] * k["count"] for k in costed) / alone_s
    kept = whole["state_kept_tracing"] and whole["state_kept_measuring"]
    return [
        str(len(kernels)),
        str(len(costed)),
        f"{share:.1%}".replace("%", " %"),
        f"{whole['measure_s']:.0f} s",
        f"{whole['measure_s'] / len(kernels):.1f} s",
        f"{1e3 * alone_s:.2f} / {1e3 * in_step_s:.2f} ms",
        "yes" if kept else "no",
    ]


def _speed(speeds: dict[str, Any]) -> list[str]:
    looks = [[look["tenth"] for look in speeds[when]] for when in ("before", "traced", "measured")]
    first, *later = (min(look) for look in looks)
    return [
        *(", ".join(f"{each:.2f}" for each in look) for look in looks),
        *(f"{100 * (each / first - 1):+.1f} %" for each in later),
    ]


if __name__ == "__main__":
    main()
