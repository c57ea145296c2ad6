"""`underclock job`: a job from a schedule's name and a profile or samples; what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from underclock.app import main
from underclock.app.stages import stage_costs
from underclock.errors import DataError
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Pass,
    SampleSet,
    Step,
    Window,
)
from underclock.records.job import Job
from underclock.records.latencies import LatencyTable
from underclock.store import SampleFile, read_document, write_document

STAGE = "{s},forward,1400,0.1,30\n{s},forward,1000,0.13,24\n{s},backward,1400,0.2,60\n"
USUAL = "job 1f1b --stages 2 --microbatches 3 --profile profile.csv"


@pytest.fixture(autouse=True)
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay a profile of two stages into the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(STAGE.format(s=stage) for stage in range(2))
    Path("profile.csv").write_text("stage,instruction,frequency,time,energy\n" + rows)


def test_a_job_is_written_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    main(f"{USUAL} --transfer 5ms --all-reduce 2ms --data 2 -o job.json".split())
    said = capsys.readouterr()
    assert "1f1b of profile: 4 ranks, 2 pipelines side by side, 3 microbatches" in said.out
    assert "replayed" in said.out
    assert "60 W is assumed" in said.err
    made = read_document(Path("job.json"), Job)
    assert made.ranks[1].waiting[0].power_w == pytest.approx(60.0)
    assert {each.time_s for each in made.ranks[0].instructions} == {None, 0.005, 0.002}


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        ("--blocked-power -1", 2, "waiting draws -1.0 W"),
        ("--microbatches 0", 2, "one or more microbatches"),
        ("--transfer 1ms,2ms,3ms", 2, "3 transfer times for 1 boundaries"),
        ("--transfer fast", 2, "fast"),
        ("--chunks 2", 2, "interleaved has two or more"),
        ("--stages 3", 4, "no profile of 'stage 2 forward'"),
    ],
)
def test_what_is_no_job_is_refused(
    more: str, code: int, message: str, fails: Callable[[str], tuple[int, str]]
) -> None:
    ended, said = fails(f"{USUAL} {more}")
    assert ended == code
    assert message in said


@pytest.mark.untraced
def test_a_job_is_planned_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    main(f"{USUAL} --blocked-power 60 -o job.json".split())
    capsys.readouterr()
    usual = ["plan", "job.json", "--max-slowdown", "20%"]
    main([*usual, "--latency", "1ms", "-o", "plan.json"])
    assert "each instruction" in capsys.readouterr().out
    main([*usual, "--json"])
    said = capsys.readouterr()
    made = json.loads(said.out)
    arm = next(arm for arm in made["arms"] if arm["name"] == "instruction")
    assert arm["cost"]["energy_change"] < 0.0
    assert 0.0 <= arm["gap"] < 0.05
    assert arm["cost"]["time_change"] <= 0.2
    assert "taken as free, a bound" in said.err
    main(["report", "plan.json", "-o", "page.html"])
    main(["report", "plan.json", "-o", "plan.trace.json"])
    capsys.readouterr()
    assert "plan for 1f1b of profile on 2 GPUs" in Path("page.html").read_text()
    assert json.loads(Path("plan.trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("plan job.json --max-switches 3", 2, "--max-switches says nothing of a job"),
        ("plan job.json --latency measured", 2, "job.latency.json"),
        ("plan job.json --latency soon", 2, "soon"),
        ("report job.json -o page.html", 4, "a job file, and a page is of a plan"),
        ("report job.json -o job.trace.json", 4, "a job file, and a page is of a plan"),
        ("measure job.json --gpu sim:rtx3080ti -o x.db", 4, "job"),
    ],
)
def test_a_job_is_taken_for_nothing_else(
    command: str,
    code: int,
    message: str,
    fails: Callable[[str], tuple[int, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(f"{USUAL} --blocked-power 60 -o job.json".split())
    capsys.readouterr()
    ended, said = fails(command)
    assert (ended, message in said) == (code, True), said


CORES = (900, 1200, 1500, None)
SAMPLED = "job 1f1b --stages 2 --microbatches 3"


def stage(
    *,
    slower: float = 1.0,
    cores: tuple[int | None, ...] = CORES,
    backward: Pass = Pass.BACKWARD,
    gpu: str = "G",
    evidence: Evidence = Evidence.REPLAYED,
) -> SampleSet:
    """Return samples of a stage of two kernels a pass, one bound by the core, one not."""
    kernels = tuple(
        Kernel(name=f"{name} {bound}", pass_=pass_, count=4)
        for name, pass_ in (("f", Pass.FORWARD), ("b", backward))
        for bound in (0.0, 1.0)
    )
    windows = []
    for kernel in kernels:
        for core in cores:
            part = (core or 1800) / 1800
            time_s = slower * 5e-3 * (1.0 + float(kernel.name[2:]) * (1.0 / part - 1.0))
            windows.append(
                Window(
                    kernel=kernel.name,
                    asked=Clocks(core_mhz=core),
                    time_s=time_s,
                    energy_j=time_s * (100.0 + 250.0 * part**3),
                )
            )
    return SampleSet(
        evidence=evidence,
        gpu=GpuInfo(name=gpu),
        step=Step(
            name="w", kernels=kernels, order=(*(0, 0, 0, 0, 1, 1, 1, 1), *(2, 2, 2, 2, 3, 3, 3, 3))
        ),
        windows=tuple(windows),
    )


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay tables of a stage and of a slower one into the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    for name, of in (("fast", stage()), ("slow", stage(slower=2.0))):
        rows = (
            f"G,{w.kernel},{'forward' if w.kernel[0] == 'f' else 'backward'},4,"
            f"{w.asked.core_mhz or ''},,{w.time_s},{w.energy_j}\n"
            for w in of.samples
        )
        header = "gpu,kernel,pass,count,core_mhz,mem_mhz,time_s,energy_j\n"
        Path(f"{name}.csv").write_text(header + "".join(rows))
    write_document(
        Path("other.latency.json"),
        msgspec.structs.replace(LatencyTable.constant(6e-3), gpu=GpuInfo(name="H")),
    )
    Path("bare.csv").write_text(header + "G,k,forward,1,,,1,100\nG,l,backward,1,900,,1,100\n")


def test_a_table_of_one_stage_is_that_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    main(f"{SAMPLED} --samples fast.csv -o job.json".split())
    said = capsys.readouterr()
    assert "measured alone" in said.err
    assert "replayed" in said.out
    made = read_document(Path("job.json"), Job)
    assert made.gpu.name == "G"
    assert {rank.gpu for rank in made.ranks} == {None}
    profile = made.profiles["stage 1 backward"]
    assert profile == made.profiles["stage 0 backward"]
    assert [row.core_mhz for row in profile.rows] == list(CORES)
    assert profile.rows[profile.auto].clocks == AUTO
    assert [row.time_s for row in profile.rows] == pytest.approx([0.06, 0.05, 0.044, 0.04])
    assert not any(row.inside for row in profile.rows)


@pytest.mark.parametrize(("latency", "inside"), [("free", True), ("12ms", True), ("40ms", False)])
def test_clocks_change_inside_where_latency_leaves_time(latency: str, *, inside: bool) -> None:
    costs = stage_costs(None, [stage()], latency, stages=2)
    rows = costs.profiles["stage 1 forward"].rows
    assert any(row.inside for row in rows) == inside
    assert any("a bound" in words for words in costs.warnings) == (latency == "free")
    assert sum(not row.inside for row in rows) == len(CORES)


@pytest.mark.parametrize(
    ("asked", "code", "message"),
    [
        ("", 2, "in a profile, or in samples"),
        ("--samples fast.csv --profile profile.csv", 2, "in a profile, or in samples"),
        ("--profile profile.csv --latency 6ms", 2, "in a profile, or in samples"),
        ("--samples fast.csv " * 3, 2, "samples of 3 stages for 2"),
        ("--samples none.db", 4, "none.db"),
        ("--samples bare.csv", 4, "'l' has no row at core auto"),
        ("--samples fast.csv --latency 6ms", 4, "the order in which"),
        ("--samples fast.csv --latency soon", 2, "soon"),
    ],
)
def test_what_tells_no_stage_is_refused(
    asked: str, code: int, message: str, fails: Callable[[str], tuple[int, str]]
) -> None:
    ended, said = fails(f"{SAMPLED} {asked}")
    assert (ended, message in said) == (code, True), said


def test_samples_that_are_no_stages_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="no backward pass"):
        stage_costs(None, [stage(backward=Pass.OPTIMIZER)], None, stages=2)
    never = msgspec.structs.replace(stage(), windows=stage().windows[4:])
    with SampleFile.create(Path("never.db"), msgspec.structs.replace(never, windows=())) as file:
        for window in never.windows:
            file.append(window)
    with pytest.raises(DataError, match=r"never\.db: no sample of 'f 0\.0'"):
        stage_costs(None, ["never.db"], None, stages=2)
    whole = msgspec.structs.replace(
        stage(evidence=Evidence.SIMULATED), windows=(Window(time_s=1.0, energy_j=200.0),)
    )
    with pytest.raises(DataError, match="whole only"):
        stage_costs(None, [whole], None, stages=2)
    with pytest.raises(DataError, match="stages are replayed and simulated"):
        stage_costs(None, [stage(), stage(evidence=Evidence.SIMULATED)], None, stages=2)
    with pytest.raises(DataError, match="those of H, not of G"):
        stage_costs(None, [stage()], "other.latency.json", stages=2)
