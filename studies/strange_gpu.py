"""Campaigns on a simulated GPU far from the usual. Writes docs/evidence/strange_gpu.md.

OMP_NUM_THREADS=1 python studies/strange_gpu.py
"""

import dataclasses
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import underclock
from promises_truth import Truth, truth_of
from underclock.core.model.fitting import fit_rows
from underclock.core.planning.goal import Goal
from underclock.gpus.models import GpuModel, encode, gpu_model
from underclock.records import MeasurementSettings, Step
from underclock.stages.plan import plan
from underclock.workloads import workload

_PAGE = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "strange_gpu.md"
_SEEDS, _SAMPLES, _BUDGET = 4, 90, 0.01
_BRIEF = MeasurementSettings(warm_s=20.0, steady_s=5.0, kernel_warm_s=5.0, window_s=1.0)
_TEXT = """# Campaigns on a simulated GPU far from the usual

A fit begins with constants of usual GPUs. Where what samples tell of a GPU lies further from them
than such constants differ among GPUs, the prior of all of them is widened, and the plan says so.
Here one layer of GPT-3 XL is measured adaptively ({samples} samples, a budget of {budget:.0%}) on
`sim:rtx3080ti` and on the same with constants far off: the exponent 9 for 3.4, voltage rising from
half the clock and a tenth as steeply, leakage 0.15 and clock tree and memory 0.1 times as much.
*Truth* is whole steps of the plan executed, without noise. Everything is **simulated**.

Made by `python studies/strange_gpu.py` on {date} ({machine}; {minutes:.0f} min).

| GPU | seed | prior wider by | promise | 95 % interval | truth | time, truth |
|---|---|---|---|---|---|---|
{rows}

What the far GPU's plans say, with the first seed:

> {sentence}
"""


def far(model: GpuModel) -> GpuModel:
    """Return a GPU whose constants are far from any in the catalogue."""
    known = model.constants
    return dataclasses.replace(
        model,
        constants=dataclasses.replace(
            known,
            exponent=9.0,
            knee_mhz=0.5 * known.knee_mhz,
            slope_v_per_mhz=0.1 * known.slope_v_per_mhz,
            bend_v_per_mhz2=0.4 * known.bend_v_per_mhz2,
            leak_w_per_v3=0.15 * known.leak_w_per_v3,
            clock_w_per_ghz_v2=0.1 * known.clock_w_per_ghz_v2,
            mem_points_w=tuple(0.1 * power_w for power_w in known.mem_points_w),
        ),
    )


def rows(name: str, file: Path, step: Step, truth: Truth) -> Iterator[tuple[str, str]]:
    """Measure and plan with several seeds; return lines of the table, and what the plan says."""
    for seed in range(_SEEDS):
        samples = underclock.measure(
            step,
            gpu=f"sim:{file}",
            to=file.with_suffix(f".{seed}.db"),
            campaign=underclock.Campaign(max_samples=_SAMPLES, slowdowns=(_BUDGET,)),
            measuring=_BRIEF,
            seed=seed,
        )
        made = plan(samples, Goal(max_slowdown=_BUDGET))
        wider = fit_rows(samples, samples.settings)[1].shared_scale
        time_change, energy_change = truth.changes(made)
        low, high = made.arm(made.chosen).energy_interval or (0.0, 0.0)
        line = (
            f"| {name} | {seed} | {wider:.2f} | {made.promise.energy_change:+.2%} "
            f"| {low:+.2%} to {high:+.2%} | {energy_change:+.2%} | {time_change:+.2%} |"
        )
        print(line, flush=True)
        said = [words for words in made.warnings if "times further from the usual" in words]
        yield line, " ".join(said)


def main() -> None:
    """Run all campaigns and write the page."""
    began_s = time.perf_counter()
    usual = gpu_model("rtx3080ti")
    step = workload("gpt3-xl", {"layers": 1})
    made: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, model in (("usual", usual), ("far", far(usual))):
            file = Path(folder) / f"{name}.json"
            file.write_text(encode(model), encoding="utf-8")
            with truth_of(str(file), step) as truth:
                made += rows(name, file, step, truth)
    text = _TEXT.format(
        samples=_SAMPLES,
        budget=_BUDGET,
        date=time.strftime("%Y-%m-%d"),
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}",
        minutes=(time.perf_counter() - began_s) / 60.0,
        rows="\n".join(line for line, _ in made),
        sentence=made[_SEEDS][1] or "(nothing)",
    )
    _PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
