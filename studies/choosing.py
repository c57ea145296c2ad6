"""Set ways of choosing clocks side by side, and write docs/evidence/rivals.md.

Usage: python studies/choosing.py [--quick]   (with it: one layer of a small step, and no page)
"""

import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import underclock
from pages import MEASURED, fill, markdown, percent
from truth import truth_of
from underclock.records import AUTO, Clocks, SampleSet, Step
from underclock.records.rivals import Comparison, Rival, RivalChoice
from underclock.report.wording import arm_title

_BUDGETS = (0.0, 0.01, 0.05)
_LATENCIES = ("6ms", "150ms")
_SEEDS = range(10)
_SEARCHING = ("genetic", "feedback")
_TABLES: dict[str, Clocks | None] = {
    "rtx3080ti_kernels": None,
    "a40_llm_stages": None,
    "a100_apps": None,
    "v100_repeats": None,
    "titanx_apps": Clocks(core_mhz=975, mem_mhz=3505),
    "gtx1080ti_kernels": Clocks(core_mhz=1800, mem_mhz=5000),
}


def _cell(choice: RivalChoice | None) -> str:
    if choice is None or choice.arm.time_change is None or choice.arm.energy_change is None:
        return "none"
    text = f"{percent(choice.arm.time_change)} / {percent(choice.arm.energy_change)}"
    return text if choice.keeps_budget else f"*{text}*"


def _shown(comparison: Comparison) -> Iterator[Rival]:
    return (rival for rival in comparison.rivals if rival.free is not None)


def _simulated(samples: SampleSet) -> str:
    """Return what policies come to on a simulated GPU, within each budget."""
    parts = []
    for budget in _BUDGETS:
        compared = [underclock.compare(samples, budget, latency=each) for each in _LATENCIES]
        lines: list[tuple[str, ...]] = [
            ("policy", "free switching", *(f"clocks take {each}" for each in _LATENCIES))
        ]
        for rivals in zip(*map(_shown, compared), strict=True):
            free, *rest = rivals[0].free, *(rival.achievable for rival in rivals)
            lines.append((arm_title(rivals[0].name), _cell(free), *map(_cell, rest)))
        parts.append(f"Within {budget:.0%} (time / energy):\n\n{markdown(lines)}")
    return "\n\n".join(parts)


def _seeds(samples: SampleSet) -> str:
    """Return how far what searches at random scatters from seed to seed."""
    lines: list[tuple[str, ...]] = [
        ("policy", "mean energy", "least saving", "most", "budget kept")
    ]
    compared = [
        underclock.compare(samples, 0.01, policies=_SEARCHING, latency="free", seed=seed)
        for seed in _SEEDS
    ]
    for name in _SEARCHING:
        found = [each.rival(name).free for each in compared]
        changes = [choice.arm.energy_change or 0.0 for choice in found if choice is not None]
        kept = sum(choice.keeps_budget for choice in found if choice is not None)
        ends = percent(max(changes)), percent(min(changes))
        mean = percent(statistics.fmean(changes))
        lines.append((arm_title(name), mean, *ends, f"{kept} of {len(_SEEDS)}"))
    return markdown(lines)


def _executed(samples: SampleSet, step: Step) -> str:
    """Return what policies within 1 % promise, and what their clocks truly do."""
    lines: list[tuple[str, ...]] = [("policy", "promised", "executed", "in its intervals")]
    found = underclock.compare(samples, 0.01, latency="free")
    with truth_of("rtx3080ti", step) as truth:
        for rival in _shown(found):
            choice = rival.free
            if choice is None or not choice.kernels or choice.clocks == (AUTO,):
                continue  # a power limit and a controller are no clocks of kernels
            came = truth.of_clocks(choice.kernels)
            ends = choice.arm.time_interval, choice.arm.energy_interval
            held = [
                each is not None and each[0] <= true <= each[1]
                for each, true in zip(ends, came, strict=True)
            ]
            words = {(True, True): "both", (True, False): "time", (False, True): "energy"}
            executed = " / ".join(map(percent, came))
            cell = _cell(choice).strip("*")
            lines.append(
                (arm_title(rival.name), cell, executed, words.get((held[0], held[1]), "none"))
            )
    return markdown(lines)


def _replayed() -> str:
    """Return what policies come to on tables that others measured, within 1 %."""
    compared = {
        name: underclock.compare(MEASURED / f"{name}.csv", 0.01, baseline=baseline)
        for name, baseline in _TABLES.items()
    }
    lines: list[tuple[str, ...]] = [("policy", *(f"`{name}`" for name in compared))]
    lines += [
        (arm_title(rivals[0].name), *(_cell(rival.free) for rival in rivals))
        for rivals in zip(*map(_shown, compared.values()), strict=True)
    ]
    return markdown(lines)


def main() -> None:
    """Write the page."""
    quick = "--quick" in sys.argv
    step = underclock.trace("gpt3-125m", layers=1) if quick else underclock.trace("gpt3-xl")
    with tempfile.TemporaryDirectory() as folder:
        samples = underclock.measure(
            step, gpu="sim:rtx3080ti", to=Path(folder) / "samples.db", seed=0
        )
    parts = {
        "simulated": _simulated(samples),
        "executed": _executed(samples, step),
        "seeds": _seeds(samples),
        "replayed": _replayed(),
    }
    fill(
        "rivals",
        parts,
        repeats=f"One campaign on the simulated GPU; seeds 0 to {max(_SEEDS)} of what searches.",
        whole=not quick,
    )


if __name__ == "__main__":
    main()
