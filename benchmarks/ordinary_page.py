"""Prints tables of ordinary steps measured kernel by kernel, for docs/evidence/h200/ordinary.md.

    python benchmarks/ordinary_page.py RESULTS.json ...

Takes what ``benchmarks/h200.py RESULTS.json brief=ordinary.py:NAME`` wrote.
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
    for path in sys.argv[1:]:
        for key, value in json.loads(Path(path).read_text()).items():
            if key.startswith("whole "):
                found[key.rpartition(":")[2]] = value
    print("| step | kernels | with a cost | of the time | measured in | a kernel |", end="")
    print(" alone / in the step | state kept |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    for name, words in NAMES.items():
        if name in found:
            print("| " + " | ".join([words, *_measured(found[name])]) + " |")
    print()
    print("| step | before, twice | traced | measured | change | calls in Python, four times |")
    print("|---|---:|---:|---:|---:|---|")
    for name, words in NAMES.items():
        if name in found:
            print("| " + " | ".join([words, *_speed(found[name])]) + " |")


def _measured(whole: dict[str, Any]) -> list[str]:
    kernels = whole["kernels"]
    in_step_s = sum(s["time_s"] for s in whole["in_situ"]) / len(whole["in_situ"])
    alone_s = sum(kernel["time_s"] * kernel["count"] for kernel in kernels)
    costed = [k for k in kernels if k["time_s"] and k["energy_j"]]
    share = sum(k["time_s"] * k["count"] for k in costed) / alone_s
    kept = whole["state_kept_tracing"] and whole["state_kept_measuring"]
    return [
        str(whole["distinct"]),
        str(len(costed)),
        f"{share:.1%}".replace("%", " %"),
        f"{whole['measure_s']:.0f} s",
        f"{whole['measure_s'] / whole['distinct']:.1f} s",
        f"{1e3 * alone_s:.2f} / {1e3 * in_step_s:.2f} ms",
        "yes" if kept else "no",
    ]


def _speed(whole: dict[str, Any]) -> list[str]:
    before = [each["tenth"] for each in whole["speed_before_ms"]]
    after = [whole[f"speed_after_{each}"]["tenth"] for each in ("ms", "measuring_ms")]
    mean = sum(before) / len(before)
    return [
        ", ".join(f"{each:.2f}" for each in before),
        *(f"{each:.2f} ms" for each in after),
        f"{100 * (after[-1] / mean - 1):+.1f} %",
        ", ".join(map(str, whole["calls_in_python"])),
    ]


if __name__ == "__main__":
    main()
