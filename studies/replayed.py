"""Plan every measured sweep in a folder and write docs/evidence/replayed.md.

Usage: python studies/replayed.py [FOLDER]   (default: ../shared/data/measured)
"""

import sys
from pathlib import Path

import underclock
from underclock.records import Aggregate, Arm, Clocks, Plan, Status, Strategy
from underclock.units import format_percent

_ROOT = Path(__file__).resolve().parent.parent
_PAGE = _ROOT / "docs" / "evidence" / "replayed.md"
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
_HEAD = """# Plans on other people's measurements

Every number on this page is **replayed**: planned and costed on a table that somebody measured on
a real GPU, one run a row. Nothing was run for it, and no switch between clocks is charged. So this
is what free, instant switching would be worth on those numbers; choosing the least of noisy
numbers overstates it somewhat, and nothing here corrects for that.

Changes are of total time and total energy against the baseline named above each table, every
kernel counted once. `auto` stands for that baseline. *Global*: the total keeps the time budget;
*local*: every kernel (or pass) keeps it alone. All choices are proven optimal (gap 0).

Where a table says nothing of passes, all its kernels are in one pass, and pass-level is the same
as one fixed clock. The A40's kernels are named forward and backward.

Made by `make evidence`, which runs `studies/replayed.py`; by hand, for one cell:

    underclock plan ../shared/data/measured/rtx3080ti_kernels.csv --max-slowdown 1%
    underclock plan ../shared/data/measured/titanx_apps.csv --baseline 975,3505
"""


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
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
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
        lines.append(f"| {budget:.0%} | " + " | ".join(map(_cell, arms)) + " |")
    title = f"## {made.gpu.name}: {what}\n\n`{table.name}`, baseline {made.baseline}"
    return f"{title} (time / energy):\n\n" + "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT.parent / "shared/data/measured"
    parts = [_HEAD]
    for name, (what, default) in _SWEEPS.items():
        table = folder / f"{name}.csv"
        parts.append(_section(table, what, None))
        if default is not None:
            parts.append(_section(table, f"{what}; against its default clocks", default))
    _PAGE.write_text("\n".join(parts), encoding="utf-8")
    print(f"wrote {_PAGE.relative_to(_ROOT)}")


if __name__ == "__main__":
    main()
