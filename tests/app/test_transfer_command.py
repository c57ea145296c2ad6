"""`underclock transfer`: a plan for a step that was not measured."""

import json
from pathlib import Path

import msgspec
import pytest

from made_transfers import gpt, made_samples
from underclock import Confirm, Plan, plan, save, transfer, write_report
from underclock.app import main
from underclock.hw.simulated.driver import simulated_rig
from underclock.records import GpuInfo, Kernel, Step
from underclock.records.planned import MatchWay
from underclock.store import read_document, read_samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a plan, its samples and other steps lie."""
    folder = tmp_path_factory.mktemp("transfer")
    known, other = made_samples(gpt()), made_samples(gpt(batch=8))
    save(known, folder / "known.db")
    save(other, folder / "other.db")
    unlike = GpuInfo(name="G", power_limit_w=900.0)
    save(msgspec.structs.replace(other, gpu=unlike), folder / "unlike.db")
    save(plan(known), folder / "plan.json")
    save(gpt(batch=8), folder / "step.json")
    strange = Step(name="strange", kernels=(Kernel(name="a", bytes_moved=1e6),), order=(0,))
    save(strange, folder / "strange.json")
    return folder


@pytest.fixture
def files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be there."""
    monkeypatch.chdir(folder)
    return folder


def run(*arguments: object) -> int:
    try:
        main(["transfer", *map(str, arguments)])
    except SystemExit as exc:
        return int(exc.code or 0)
    return 0


def test_a_plan_is_carried_over_and_says_how(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("plan.json", "step.json", "--from", "known.db", "--samples", "other.db")
    assert run(*asked, "--max-slowdown", "1%", "-o", "carried.json") == 0
    said = capsys.readouterr()
    made, text = read_document(files / "carried.json", Plan), " ".join(said.out.split())

    assert "Carried over from samples of gpt3-125m" in text
    assert "carried over from gpt3-125m" in text
    assert "same role, other shape" in text
    assert "planned on the step's own samples" in text
    assert "was not measured" in said.err
    assert made.carried is not None
    assert made.headline.energy_interval is not None
    assert made.max_slowdown == 0.01
    assert made.carried.regret_energy == pytest.approx(0.0, abs=0.01)
    assert made.step.fingerprint == gpt(batch=8).fingerprint
    assert run("plan.json", "step.json", "--from", "known.db", "--json") == 0
    write_report(made, to=files / "carried.html")
    assert "Carried over from samples" in (files / "carried.html").read_text()
    assert "matches" in json.loads(capsys.readouterr().out)["carried"]


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("plan.json step.json", 4, "does not hold the samples"),
        ("plan.json step.json --from nowhere.db", 4, "are gone: no file nowhere.db"),
        ("plan.json step.json --from other.db", 4, "of another step than the samples"),
        ("plan.json strange.json --from known.db", 4, "shares no kernel"),
        ("plan.json step.json --from unlike.db", 4, "power limit"),
        ("known.db step.json --from known.db", 4, "given twice"),
        (
            "known.db step.json --samples known.db --latency free",
            4,
            "of other captures of the step",
        ),
        (
            "known.db step.json --samples unlike.db --latency free",
            4,
            "of other power limits: 900.0",
        ),
        ("known.db step.json --confirm 2 -o c.json", 2, "on a GPU, and none is named"),
        ("known.db step.json --gpu sim:a100", 2, "nothing is measured on --gpu"),
        ("known.db step.json --confirm 0 --gpu sim:a100 -o c.json", 2, "confirms nothing"),
        ("known.db step.json --confirm 2 --gpu sim:a100", 2, "the samples need a file"),
        ("known.db step.json --confirm 2 --gpu replay:t.csv -o c.json", 2, "cannot run"),
        (
            "known.db step.json --confirm 2 --gpu sim:a100 -o c.json --latency free",
            4,
            "is another GPU",
        ),
    ],
)
@pytest.mark.usefixtures("files")
def test_what_cannot_be_carried_over_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: str, code: int, sentence: str
) -> None:
    assert run(*arguments.split()) == code
    said = capsys.readouterr().err
    assert sentence in said
    assert "hint" in said


@pytest.mark.untraced
def test_kernels_that_the_promise_hangs_on_are_measured(folder: Path) -> None:
    device = simulated_info()
    known = msgspec.structs.replace(made_samples(gpt()), gpu=device)
    to = folder / "own.db"
    confirm = Confirm(kernels=2, gpu="sim:rtx3080ti", to=to)
    made = transfer(known, gpt(batch=8), confirm=confirm)

    assert made.carried is not None
    assert len(made.carried.confirmed) == 2
    for name in made.carried.confirmed:
        assert made.carried.matches[name].way is MatchWay.SAME
    taken = {window.kernel for window in read_samples(to).windows}
    assert taken == set(made.carried.confirmed)


def simulated_info() -> GpuInfo:
    """Return what the simulated GPU says of itself."""
    with simulated_rig("rtx3080ti") as rig:
        return rig.gpu.info()
