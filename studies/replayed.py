"""Plan every measured sweep in a folder and write docs/evidence/replayed.md.

Usage: python studies/replayed.py [FOLDER]   (default: ../shared/data/measured)
"""

import sys
from pathlib import Path

import underclock
from pages import MEASURED, fill, markdown
from underclock.records import Aggregate, Arm, Clocks, Plan, Status, Strategy
from underclock.units import format_percent

_BUDGETS = (0.0, 0.01, 0.05)
_COLUMNS = (
    "time budget",
    "auto",
    "best fixed",
    "pass, local",
    "pass, global",
    "kernel, local",
    "kernel, global",
)
_SWEEPS: dict[str, tuple[str, Clocks | None]] = {
    "rtx3080ti_kernels": ("15 PolyBench and Rodinia kernels, core x memory", None),
    "a40_llm_stages": ("GPT-3 175B and BLOOM pipeline stages, core only", None),
    "a100_apps": ("25 applications, core only", None),
    "titanx_apps": ("25 applications, core x memory", Clocks(core_mhz=975, mem_mhz=3505)),
    "gtx1080ti_kernels": ("30 kernels, core x memory", Clocks(core_mhz=1800, mem_mhz=5000)),
}


def _cell(arm: Arm) -> str:
    cost = arm.cost
    if cost is None:
        return "none"
    if arm.status not in {Status.OPTIMAL, Status.BASELINE}:
        raise AssertionError(f"{arm.name} is not proven optimal")
    return f"{format_percent(cost.time_change)} / {format_percent(cost.energy_change)}"


def _plan(table: Path, budget: float, baseline: Clocks | None, aggregate: Aggregate) -> Plan:
    goal = underclock.Goal(max_slowdown=budget, aggregate=aggregate)
    return underclock.plan(table, goal, baseline=baseline)


def _section(table: Path, what: str, baseline: Clocks | None) -> str:
    lines: list[tuple[str, ...]] = [_COLUMNS]
    for budget in _BUDGETS:
        local = _plan(table, budget, baseline, Aggregate.LOCAL)
        made = _plan(table, budget, baseline, Aggregate.GLOBAL)
        arms = [
            made.arm(Strategy.AUTO),
            made.arm(Strategy.BEST_FIXED),
            local.arm(Strategy.PASS),
            made.arm(Strategy.PASS),
            made.arm(Strategy.KERNEL_LOCAL),
            made.arm(Strategy.KERNEL_GLOBAL),
        ]
        lines.append((f"{budget:.0%}", *map(_cell, arms)))
    title = f"## {made.gpu.name}: {what}\n\n`{table.name}`, baseline {made.baseline}"
    return f"{title} (time / energy):\n\n{markdown(lines)}\n"


def main() -> None:
    """Write the page."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else MEASURED
    parts = []
    for name, (what, default) in _SWEEPS.items():
        table = folder / f"{name}.csv"
        parts.append(_section(table, what, None))
        if default is not None:
            parts.append(_section(table, f"{what}; against its default clocks", default))
    fill("replayed", {"tables": "\n".join(parts)}, repeats="Planning is exact: nothing scatters.")


if __name__ == "__main__":
    main()
