"""How long the fit takes: a campaign's samples, and a full sweep of a thousand kernels.

    OMP_NUM_THREADS=1 python benchmarks/fitting.py [--quick]

Each case draws a GPU, its kernels and noisy samples of them, fits them
(`core.model.most_likely.fitted`) and predicts every kernel at every setting
(`core.model.estimate.at_locked_clocks`). Another seed each repeat. The table goes to
docs/evidence/fitting.md, and with it what ten times the runs of a table cost; a quick run, of the
small case, is printed.
"""

import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from underclock.core.model.estimate import at_locked_clocks, estimate
from underclock.core.model.most_likely import MOST_KERNELS, MOST_ROWS, fit_rows, fitted
from underclock.core.model.parameters import (
    PER_KERNEL,
    Parameters,
    Points,
    Rows,
    Shared,
    predicted_rows,
    unknown_gpu,
)
from underclock.records import Clocks, Evidence, GpuInfo, Kernel, SampleSet, Step, Window

_PAGE = Path(__file__).resolve().parent.parent / "docs" / "evidence" / "fitting.md"
_MEMS = (405.0, 5001.0, 9251.0, 9501.0)
_NOISE = np.array([[0.003], [0.008]])  # of time and power
_WARM_C = 55.0
_MEBIBYTES = 1 / 1024  # per the kibibyte that Linux counts in
# kernels, settings, repeats, wanted s
_CASES = ((60, 60, 7, 2.0), (1000, 760, 3, 60.0), (10_000, 60, 3, 120.0))
_TABLE, _RUNS, _TIMES = (40, 40), (3, 30), 3  # kernels and settings, runs of a row, repeats
_HEADERS = (
    "kernels x settings",
    "rows",
    "repeats",
    "fit s",
    "predict s",
    "both, median s",
    "least to greatest",
    "CPU, median s",
    "least to greatest",
    "wanted s",
    "peak MiB",
    "energy off",
    "inside",
)
_FAMILY = Shared(unknown_gpu(_MEMS, fastest_mhz=2100.0, most_w=350.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One repeat.

    Attributes:
        fit_s: Time of the fit.
        predict_s: Time of the prediction.
        cpu_s: CPU time of both: what they take on an idle machine.
        off: Median error of the predicted energy against the truth, as a fraction.
        inside: Share of energies within their 95 % interval.
        peak_mib: Peak memory of the process, input included.
    """

    fit_s: float
    predict_s: float
    cpu_s: float
    off: float
    inside: float
    peak_mib: float


def run(kernels: int, settings: int, seed: int) -> Run:
    """Draw, fit, predict and compare with the truth."""
    random = np.random.default_rng(seed)
    start = _FAMILY.start()
    shared = start + np.clip(random.normal(0.0, 0.5, len(start)), -1, 1) * _FAMILY.spread()
    core, mem = (
        grid.ravel()
        for grid in np.meshgrid(np.linspace(300.0, 2100.0, settings // 4).round(), _MEMS)
    )
    own = np.log(random.uniform(0.05, 1.0, (kernels, PER_KERNEL)))
    own += np.array([math.log(2100.0), math.log(9501.0), -3.0, math.log(150.0)])
    own += random.normal(-7.0, 1.0, (kernels, 1))
    at = Points(
        kernel=np.repeat(np.arange(kernels), len(core)),
        core_mhz=np.tile(core, kernels),
        mem_mhz=np.tile(mem, kernels),
        temperature_c=np.full(kernels * len(core), _WARM_C),
    )
    parameters = Parameters(family=_FAMILY, shared=shared, kernels=own)
    truth = predicted_rows(parameters, at).log
    log = truth + random.normal(0.0, 1.0, truth.shape) * _NOISE
    rows = Rows(
        names=tuple(f"kernel {k}" for k in range(kernels)),
        kinds=random.integers(0, 3, kernels),
        kernel=at.kernel,
        core_mhz=at.core_mhz,
        mem_mhz=at.mem_mhz,
        log=log,
        temperature_c=at.temperature_c,
        windows=np.ones((2, len(at.kernel))),
        mem_points_mhz=np.array(_MEMS),
        limit_w=math.inf,
        ceiling_mhz=math.inf,
        auto_mem_mhz=_MEMS[-1],
    )
    clocks = [
        Clocks(core_mhz=int(c), mem_mhz=int(m))
        for c, m in zip(core.tolist(), mem.tolist(), strict=True)
    ]
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    model = fitted(rows, _FAMILY)
    fitted_s = time.perf_counter()
    posterior = at_locked_clocks(model, (core, mem), tuple(clocks), _WARM_C)[0]
    ended_s, ended_cpu_s = time.perf_counter(), time.process_time()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MEBIBYTES
    off = np.abs(posterior.log_s + posterior.log_w - truth.sum(axis=0).reshape(kernels, -1))
    return Run(
        fit_s=fitted_s - began_s,
        predict_s=ended_s - fitted_s,
        cpu_s=ended_cpu_s - began_cpu_s,
        off=float(np.median(off)),
        inside=float((off <= 1.96 * np.sqrt(posterior.variance(1.0, 1.0))).mean()),
        peak_mib=peak_mib,
    )


def apart(kernels: int, settings: int, seed: int) -> Run:
    """Run in a process of its own, so that its peak memory is its own."""
    answer = subprocess.run(
        [sys.executable, __file__, "one", str(kernels), str(settings), str(seed)],
        check=True,
        capture_output=True,
        text=True,
    )
    names = ("fit_s", "predict_s", "cpu_s", "off", "inside", "peak_mib")
    values = (float(word) for word in answer.stdout.split())
    return Run(**dict(zip(names, values, strict=True)))


def line(kernels: int, settings: int, repeats: int, wanted_s: float) -> str:
    """Run one case and return its row of the table."""
    runs = [apart(kernels, settings, seed) for seed in range(repeats)]
    totals = [one.fit_s + one.predict_s for one in runs]
    cpu = [one.cpu_s for one in runs]
    cells = (
        f"{kernels} x {settings}",
        f"{kernels * settings}",
        f"{repeats}",
        f"{statistics.median(one.fit_s for one in runs):.2f}",
        f"{statistics.median(one.predict_s for one in runs):.2f}",
        f"{statistics.median(totals):.2f}",
        f"{min(totals):.2f} to {max(totals):.2f}",
        f"{statistics.median(cpu):.2f}",
        f"{min(cpu):.2f} to {max(cpu):.2f}",
        f"{wanted_s:g}",
        f"{max(one.peak_mib for one in runs):.0f}",
        f"{100 * statistics.median(one.off for one in runs):.2f} %",
        f"{100 * statistics.median(one.inside for one in runs):.1f} %",
    )
    return f"| {' | '.join(cells)} |"


def of_runs(runs: int, seed: int) -> dict[str, float]:
    """Return the CPU seconds that the fit and the estimate of a table with so many runs take."""
    random = np.random.default_rng(seed)
    kernels, count = _TABLE
    clocks = [Clocks(core_mhz=int(mhz), mem_mhz=9501) for mhz in np.linspace(600, 2100, count)]
    windows = []
    for k, share in enumerate(random.uniform(0.1, 0.9, kernels)):
        for each in clocks:
            part = (each.core_mhz or 0) / 2100.0
            time_s, power_w = 1e-3 * (share / part + 1.0 - share), 60.0 + 240.0 * part**2.5
            for repeat in range(runs):
                off = 1.0 + _NOISE[:, 0] * random.normal(size=2)
                taken_s = time_s * off[0]
                energy_j = taken_s * power_w * off[1]
                windows.append(
                    Window(
                        kernel=f"k{k}", asked=each, repeat=repeat, time_s=taken_s, energy_j=energy_j
                    )
                )
    table = SampleSet(
        evidence=Evidence.REPLAYED,
        gpu=GpuInfo(name="Drawn GPU"),
        step=Step(
            name="drawn", kernels=tuple(Kernel(name=f"k{k}", count=1) for k in range(kernels))
        ),
        windows=tuple(windows),
    )
    taken = {}
    for name, task in (
        ("fit", lambda: fit_rows(table, clocks)),
        ("estimate", lambda: estimate(table, baseline=clocks[-1])),
    ):
        began_s = time.process_time()
        task()
        taken[name] = time.process_time() - began_s
    return taken


def repeats() -> list[str]:
    """Return rows of what ten times the runs of a table cost."""
    lines = []
    few, many = ([of_runs(runs, seed) for seed in range(_TIMES)] for runs in _RUNS)
    for name in few[0]:
        first, more = (sorted(each[name] for each in some) for some in (few, many))
        ratio = statistics.median(more) / statistics.median(first)
        cells = [
            f"{each[len(each) // 2]:.2f} ({each[0]:.2f} to {each[-1]:.2f})"
            for each in (first, more)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio:.1f} |")
    return lines


def page(lines: list[str], load: float) -> str:
    """Return the whole page."""
    threads = os.environ.get("OMP_NUM_THREADS", "as many as CPUs")
    time_noise, power_noise = (100 * _NOISE[:, 0]).tolist()
    return f"""# How long the fit takes

Written by `OMP_NUM_THREADS=1 python benchmarks/fitting.py`. Evidence: simulated. Samples are drawn
from the model with noise ({time_noise:g} % of time, {power_noise:g} % of power), another GPU and
kernels in each repeat, each repeat in a process of its own.

* machine: {platform.platform()}, {os.cpu_count()} CPUs, load average before: {load:.1f}
* versions: Python {platform.python_version()}, numpy {np.__version__}; OMP_NUM_THREADS: {threads}
* a kernel with more than {MOST_ROWS} rows is fitted to {MOST_ROWS} of them, spread over its clocks;
  what kernels share is fitted to {MOST_KERNELS} of them at most, spread over kinds and sizes

| {" | ".join(_HEADERS)} |
|---{"|--:" * (len(_HEADERS) - 1)}|
{chr(10).join(lines)}

*Energy off*: median difference of the predicted from the true energy, over all kernels and
settings. *CPU*: time on the CPU, which other work on the machine lengthens less than the rest.
*Inside*: share of true energies within the 95 % interval stated. Medians over repeats;
the peak is the greatest, with interpreter, numpy and input.

Ten times the runs of a table of {_TABLE[0]} kernels at {_TABLE[1]} clocks: CPU seconds, median of
{_TIMES} (least to greatest).

| | {_RUNS[0]} runs a row | {_RUNS[1]} runs a row | ratio |
|---|--:|--:|--:|
{chr(10).join(repeats())}

Wanted of 10 000 kernels were 120 s and 1.5 GB at most, of ten times the runs ten times as long.
"""


def main(arguments: list[str]) -> None:
    """Run one repeat, the small case, or all of it."""
    if arguments[:1] == ["one"]:
        one = run(*(int(word) for word in arguments[1:]))
        print(one.fit_s, one.predict_s, one.cpu_s, one.off, one.inside, one.peak_mib)
        return
    load = os.getloadavg()[0]
    quick = arguments == ["--quick"]
    text = page([line(*case) for case in _CASES[: 1 if quick else None]], load)
    print(text)
    if not quick:
        _PAGE.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
