"""Adaptive campaigns: on tables made of physics, and on a simulated GPU."""

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from score import score
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.campaign.grid import Campaign, Grid
from underclock.core.model.parameters import unknown_gpu
from underclock.core.model.sample_sets import odd_repeats
from underclock.core.planning.best_choice import Goal
from underclock.core.step.power_cap import driver_says
from underclock.errors import UsageError
from underclock.hw.measurer import BRISK
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import busy_w, duration_s
from underclock.records import AUTO, Kind, SampleSet, Step, Window
from underclock.store import SampleFile
from underclock.tracing.held import trace

if TYPE_CHECKING:
    from underclock.campaign.progress import Tally

GPU = unknown_gpu([800.0, 5000.0, 9000.0], fastest_mhz=1800.0, most_w=300.0)
CORES = range(600, 1801, 150)
MEMS = (800, 5000, 9000)
KERNELS = {
    f"k{i}": KernelConstants(
        core_mcycles=(0.2 + 0.1 * i),
        dram_mcycles=(4.5 - 0.6 * i) * 0.4,
        fixed_s=1e-6,
        work_j_per_v2=0.05 + 0.02 * i,
        dram_j=0.01,
    )
    for i in range(0, 7, 2)
}


def _write(path: Path, *, leave_out: tuple[str, int, int] | None = None) -> Path:
    lines = ["gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w"]
    for name, kernel in KERNELS.items():
        for core, mem in [(None, None), *((c, m) for c in CORES for m in MEMS)]:
            if (name, core, mem) == leave_out:
                continue
            at = float(core or 1800), float(mem or 9000)
            time_s = float(duration_s(GPU, kernel, *at))
            energy_j = time_s * float(busy_w(GPU, kernel, *at, 60.0))
            # What a table holds is rounded, and never quite the model.
            odd = 1.0 + 0.002 * math.sin(7.0 * at[0] + at[1] + len(lines))
            cells = f"{time_s * odd:.6g},{energy_j / odd:.6g},{energy_j / odd / time_s / odd:.5g}"
            lines.append(f"G,{name},{core or ''},{mem or ''},{cells}")
    path.write_text("\n".join(lines) + "\n")
    return path


def _first_kernels(count: int = 8) -> Step:
    whole = trace("gpt3-125m", layers=1)
    order = tuple(k for k in whole.order if k < count)
    return msgspec.structs.replace(whole, kernels=whole.kernels[:count], order=order)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return _write(tmp_path / "table.csv")


def _adapt(table: Path, to: Path, samples: int, **campaign: object) -> SampleSet:
    wanted = Campaign(grid=Grid.ADAPTIVE, max_samples=samples, **campaign)  # type: ignore[arg-type]
    return measure(gpu=f"replay:{table}", to=to, campaign=wanted)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("sweep") / "table.csv")


@pytest.fixture(scope="module")
def adapted(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> SampleSet:
    return _adapt(sweep, tmp_path_factory.mktemp("adapted") / "s.db", 32)


def test_few_rows_of_a_table_find_most_of_its_saving(sweep: Path, adapted: SampleSet) -> None:
    table, sample_set = sweep, adapted

    assert len(sample_set.samples) == 32  # of 112
    assert len({(s.kernel, s.asked) for s in sample_set.samples}) == 32  # none twice
    assert Counter(s.kernel for s in sample_set.samples if s.asked == AUTO) == dict.fromkeys(
        KERNELS, 1
    )
    full = plan(table, Goal(max_slowdown=0.01))
    made = plan(sample_set, Goal(max_slowdown=0.01))
    really = score(made, table)
    assert really.energy_change < 0.9 * full.promise.energy_change < 0
    assert really.time_change < 0.012
    # Each row was run once: what they say of the table is certain, of the GPU unknown.
    assert made.arm(made.chosen).energy_interval is None
    assert "its rows taken as exact" in made.answer[2]
    assert "\N{PLUS-MINUS SIGN}" not in " ".join(made.answer)


def test_a_goal_that_a_table_cannot_be_measured_for_is_refused(table: Path, tmp_path: Path) -> None:
    campaign = Campaign(slowdowns=(0.05,))
    with pytest.raises(UsageError, match="replayed whole, so it is not measured for a time budget"):
        measure(gpu=f"replay:{table}", to=tmp_path / "s.db", campaign=campaign)
    assert not (tmp_path / "s.db").exists()


def _twice(table: Path, to: Path, *, odd: int = 0) -> Path:
    """Write each row of a table twice; some second runs take three times as long."""
    header, *rows = table.read_text().splitlines()
    lines = [header]
    for number, row in enumerate(rows):
        gpu, kernel, core, mem, time_s, energy_j, power_w = row.split(",")
        factor = 3.0 if odd and number % odd == 0 else 1.001
        again = (float(time_s) * factor, float(energy_j) * factor)
        lines += [row, f"{gpu},{kernel},{core},{mem},{again[0]:.6g},{again[1]:.6g},{power_w}"]
    to.write_text("\n".join(lines) + "\n")
    return to


def _repeat(sample: Window, *, factor: float) -> Window:
    """Return a second run that took so many times as long."""
    return msgspec.structs.replace(
        sample, repeat=1, time_s=factor * sample.time_s, energy_j=factor * sample.energy_j
    )


@pytest.mark.slow
def test_odd_repeats_end_no_campaign_and_no_resuming(table: Path, tmp_path: Path) -> None:
    wild, path = _twice(table, tmp_path / "wild.csv", odd=9), tmp_path / "s.db"
    first = _adapt(wild, path, 24)
    assert len(first.samples) == 24
    taken = Counter((s.kernel, s.asked) for s in first.samples)
    once = [s for s in first.samples if taken[s.kernel, s.asked] == 1]
    again = [_repeat(sample, factor=1.001 if i else 3.0) for i, sample in enumerate(once[:12])]
    with SampleFile.open(path, writable=True) as file:
        for sample in again:
            file.append(sample)
    second = _adapt(wild, path, 38)

    assert len(second.samples) == 38
    taken = Counter((s.kernel, s.asked) for s in second.samples)
    assert max(taken.values()) <= 2
    assert odd_repeats(second)
    assert plan(second, Goal(max_slowdown=0.01)).arms


def test_a_campaign_that_was_cut_off_goes_on(table: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    first = _adapt(table, path, 18)
    assert len(first.samples) == 18
    second = _adapt(table, path, 20)
    assert second.samples[:18] == first.samples
    assert len(second.samples) == 20
    assert _adapt(table, path, 20) == second


def test_a_pair_that_the_table_lacks_is_never_planned(tmp_path: Path) -> None:
    lacking = _write(tmp_path / "t.csv", leave_out=("k2", 1200, 5000))
    sample_set = _adapt(lacking, tmp_path / "s.db", 22)
    assert [len(clocks) for clocks in sample_set.lacking.values()] == [1]
    assert list(sample_set.lacking) == ["k2"]
    score(plan(sample_set), lacking)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"precision": 0.0}, "precision must be positive"),
        ({"time_limit_s": 0.0}, "time limit must be positive"),
        ({"max_samples": 0}, "at least 1"),
        ({"grid": Grid.FULL, "max_samples": 5}, "measured whole"),
        ({"grid": Grid.COARSE, "time_limit_s": 5.0}, "measured whole"),
        ({"grid": Grid.ADAPTIVE, "repeats": 2}, "decides on repeats itself"),
        ({"slowdowns": ()}, "at least one"),
        ({"slowdowns": (1.0,)}, "below 1"),
        ({"grid": Grid.FULL, "slowdowns": (0.05,)}, "measure for every plan"),
        ({"clocks": "steer", "slowdowns": (0.05,)}, "measure for every plan"),
    ],
)
def test_campaigns_that_mean_nothing_are_refused(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Campaign(**wrong)  # type: ignore[arg-type]


def _few_kernels() -> Step:
    """Return a step of some products and some kernels that memory bounds."""
    whole = trace("gpt3-125m", layers=1)
    kernels = tuple(
        msgspec.structs.replace(kernel, count=1)
        for kind in (Kind.GEMM, Kind.MEMORY)
        for kernel in [k for k in whole.kernels if k.kind is kind][:4]
    )
    return Step(name="few", kernels=kernels, order=tuple(range(len(kernels))))


@pytest.mark.slow
def test_a_simulated_gpu_is_measured_until_the_promise_is_sharp(tmp_path: Path) -> None:
    step = _few_kernels()
    told: list[Tally] = []
    sample_set = measure(
        step,
        gpu="sim:rtx3080ti#smooth",
        to=tmp_path / "s.db",
        campaign=Campaign(precision=0.02, slowdowns=(0.01,)),
        measuring=BRISK,
        progress=told.append,
    )
    assert len(sample_set.in_situ) >= 4
    assert len(sample_set.samples) < 12 * len(step.kernels)
    assert told[-2].doing == "the promise is as sharp as asked"
    made = plan(sample_set, Goal(max_slowdown=0.01), latency="free")
    low, high = made.arm(made.chosen).energy_interval or (0.0, 1.0)
    assert (high - low) / 2 <= 0.0202
    # One kernel is measured again and again, to see what heat does.
    often = Counter((s.kernel, s.asked) for s in sample_set.samples).most_common(1)[0][1]
    assert often >= 2


def test_a_step_that_the_cap_holds_at_auto_runs_whole_at_a_lock_too(tmp_path: Path) -> None:
    for kind, runs in ((Kind.GEMM, 3), (Kind.MEMORY, 0)):
        some = [kernel for kernel in trace("gpt3-xl").kernels if kernel.kind is kind][:4]
        kernels = tuple(msgspec.structs.replace(kernel, count=1) for kernel in some)
        step = Step(name=str(kind), kernels=kernels, order=(0, 1, 2, 3))
        sample_set = measure(
            step,
            gpu="sim:rtx3080ti#2",
            to=tmp_path / f"{runs}.db",
            campaign=Campaign(max_samples=60, slowdowns=(0.01,)),
            measuring=BRISK,
        )
        steps = sample_set.locked_steps
        assert len(steps) == runs
        assert len({window.asked for window in steps}) == min(runs, 1)
        assert not any(driver_says(window.throttle_reasons) for window in steps)


def test_a_campaign_does_not_stop_because_its_plan_is_auto(tmp_path: Path) -> None:
    told: list[Tally] = []
    sample_set = measure(
        _first_kernels(4),
        gpu="sim:a100",
        to=tmp_path / "s.db",
        campaign=Campaign(max_samples=20, slowdowns=(0.0,)),
        measuring=BRISK,
        progress=told.append,
    )
    # After four samples a kernel no plan is sure to keep the time: all stays at auto, surely.
    assert len(sample_set.windows) >= 20
    assert "the promise is as sharp as asked" not in [tally.doing for tally in told]


@pytest.mark.parametrize("valley_mhz", [1170, 1395])
def test_a_saving_far_away_is_found_beside_one_next_to_auto(
    tmp_path: Path, valley_mhz: int
) -> None:
    """Clocks are 15 MHz apart: whoever looks next door of the last look never gets there."""
    rows = ["gpu,kernel,core_mhz,mem_mhz,time_s,energy_j"]
    least_j = math.inf
    for core_mhz in (None, *range(1005, 1996, 15)):
        at = core_mhz or 1995
        near = 0.04 * math.exp(-(((at - 1900) / 40) ** 2))
        far = 0.42 * math.exp(-(((at - valley_mhz) / 120) ** 2))
        energy_j = 100.0 * (1.0 - near - far)
        least_j = min(least_j, energy_j)
        rows.append(f"G,a,{core_mhz or ''},,{1.0 + 0.02 * (1995 / at - 1.0)},{energy_j}")
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")

    found = measure(
        gpu=f"replay:{tmp_path / 't.csv'}",
        to=tmp_path / "s.db",
        campaign=Campaign(grid=Grid.ADAPTIVE, max_samples=14, slowdowns=(0.05,)),
    )
    looks = [s.asked.core_mhz for s in found.samples if s.asked.core_mhz is not None]
    next_door = [abs(a - b) <= 15 for a, b in itertools.pairwise(looks)]

    assert min(s.energy_j for s in found.samples) < 1.01 * least_j
    assert sum(next_door) <= 4
