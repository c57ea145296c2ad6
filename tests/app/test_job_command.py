"""`underclock job`: a job from a schedule's name and a profile, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from underclock.app import main
from underclock.records.job import Job
from underclock.records.latencies import LatencyTable
from underclock.store import read_document, write_document

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
    assert arm["energy_change"] < 0.0
    assert 0.0 <= arm["gap"] < 0.05
    assert arm["time_change"] <= 0.2
    assert "taken as free, a bound" in said.err
    main(["report", "plan.json", "-o", "page.html"])
    main(["report", "plan.json", "-o", "plan.trace.json"])
    capsys.readouterr()
    assert "plan for 1f1b of profile on 2 GPUs" in Path("page.html").read_text()
    assert json.loads(Path("plan.trace.json").read_text())["traceEvents"]


@pytest.mark.untraced
def test_what_changing_clocks_takes_is_said_known_or_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(f"{USUAL} --blocked-power 60 --gpu-name V100 -o job.json".split())

    def planned_s(*latency: str) -> float:
        capsys.readouterr()
        main(["plan", "job.json", "--json", *latency])
        return float(json.loads(capsys.readouterr().out)["latency_s"])

    assert planned_s() == 0.0245  # reported of a V100
    assert planned_s("--latency", "free") == 0.0
    assert planned_s("--latency", "6ms") == 0.006
    write_document(Path("job.latency.json"), LatencyTable.constant(0.004))
    assert planned_s() == planned_s("--latency", "measured") == 0.004


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
