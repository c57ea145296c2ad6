"""`underclock job`: a job from a schedule's name and a profile, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from underclock.app import main
from underclock.records.job import Job
from underclock.store import read_document

STAGE = "{s},forward,1400,0.1,30\n{s},forward,1000,0.13,24\n{s},backward,1400,0.2,60\n"
USUAL = "job 1f1b --stages 2 --microbatches 3 --profile profile.csv"


@pytest.fixture(autouse=True)
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay a profile of two stages into the folder that commands run in."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(STAGE.format(s=stage) for stage in range(2))
    Path("profile.csv").write_text("stage,instruction,frequency,time,energy\n" + rows)


def test_a_job_is_written_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    main(f"{USUAL} --transfer 5ms --load 2ms --data 2 -o job.json".split())
    said = capsys.readouterr()
    assert "1f1b of profile: 4 ranks, 2 pipelines side by side, 3 microbatches" in said.out
    assert "replayed" in said.out
    assert "60 W is assumed" in said.err
    made = read_document(Path("job.json"), Job)
    assert made.ranks[1].waiting[0].power_w == pytest.approx(60.0)
    assert {each.time_s for each in made.ranks[0].instructions} == {None, 0.005, 0.002}


def test_what_waiting_draws_and_the_gpu_are_as_said(capsys: pytest.CaptureFixture[str]) -> None:
    main(f"{USUAL} --blocked-power 75 --gpu-name A100 --json".split())
    said = capsys.readouterr()
    made = json.loads(said.out)
    assert made["ranks"][0]["waiting"] == [{"core_mhz": None, "power_w": 75.0}]
    assert made["gpu"]["name"] == "A100"
    assert not said.err


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


def test_an_unknown_schedule_names_those_there_are(fails: Callable[[str], tuple[int, str]]) -> None:
    code, said = fails(USUAL.replace("1f1b", "1f2b"))
    assert code == 2
    assert "1f2b" in said
