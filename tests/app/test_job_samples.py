"""`underclock job --samples`: what stages cost from samples of their steps, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from underclock import pipeline_job
from underclock.app import main
from underclock.app.stages import stage_costs, with_costs
from underclock.errors import DataError
from underclock.records import AUTO, Clocks, Evidence, GpuInfo, Kernel, Pass, SampleSet, Window
from underclock.records.job import Job, Profile, ProfileRow
from underclock.records.latencies import LatencyTable
from underclock.store import SampleFile, read_document, write_document

CORES = (900, 1200, 1500, None)
USUAL = "job 1f1b --stages 2 --microbatches 3"


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
        workload="w",
        kernels=kernels,
        order=(*(0, 0, 0, 0, 1, 1, 1, 1), *(2, 2, 2, 2, 3, 3, 3, 3)),
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
    Path("profile.csv").write_text("stage,instruction,frequency,time,energy\n")
    write_document(
        Path("other.latency.json"),
        msgspec.structs.replace(LatencyTable.constant(6e-3), gpu=GpuInfo(name="H")),
    )
    Path("bare.csv").write_text(header + "G,k,forward,1,,,1,100\nG,l,backward,1,900,,1,100\n")


def test_a_table_of_one_stage_is_that_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    main(f"{USUAL} --samples fast.csv -o job.json".split())
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
    ended, said = fails(f"{USUAL} {asked}")
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


def test_samples_say_what_a_traced_job_takes_of_energy() -> None:
    rows = (ProfileRow(time_s=0.05, energy_j=None),)
    traced = pipeline_job("1f1b", samples=[stage()], stages=2, microbatches=2, blocked_w=50.0)
    traced = msgspec.structs.replace(
        traced, profiles=dict.fromkeys(traced.profiles, Profile(rows=rows, auto=0))
    )
    job = with_costs(traced, None, [stage(slower=0.5)], None)
    assert job.has_energy
    assert job.evidence is Evidence.REPLAYED
    profile = job.profiles["stage 1 backward"]
    assert profile.rows[profile.auto].time_s == pytest.approx(0.05)
    assert job.ranks[0].waiting[0].power_w == pytest.approx(70.0)
    assert "70 W is assumed" in job.warnings[-1]
