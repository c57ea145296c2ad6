"""Turns results of `studies/h200.py` into tables that commands read.

python studies/h200_tables.py RESULTS.json [RESULTS.json ...]

Beside each file of results goes a table of the step in it: every kernel alone, at auto clocks.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = (
    *("gpu", "kernel", "core_mhz", "mem_mhz", "time_s", "energy_j", "power_w", "count", "pass"),
    *("observed_core_mhz", "observed_mem_mhz", "temperature_c", "throttle_reasons"),
    *("sm", "tensor", "fp32", "dram"),
)


def row_of(gpu: str, kernel: dict[str, Any]) -> tuple[object, ...]:
    """Return a row of one kernel; auto clocks are empty cells."""
    time_s, energy_j = kernel["time_s"], kernel["energy_j"]
    seen, busy = kernel["observed"], kernel["utilisation"]
    return (
        *(gpu, kernel["name"], "", ""),
        *(f"{value:.7g}" for value in (time_s, energy_j, energy_j / time_s)),
        *(kernel["count"], kernel["pass"], seen["core_mhz"], seen["mem_mhz"]),
        *(kernel["temperature_c"], kernel["throttle_reasons"]),
        *(f"{busy[part]:.4g}" for part in ("sm", "tensor", "fp32", "dram")),
    )


def write(results: Path) -> Path:
    """Write the table of the one step in a file of results."""
    body = json.loads(results.read_text())
    (whole,) = (part for name, part in body.items() if name.startswith("whole "))
    to = results.with_suffix(".csv")
    with to.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(row_of(body["gpu"], kernel) for kernel in whole["kernels"])
    return to


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(write(Path(argument)))
