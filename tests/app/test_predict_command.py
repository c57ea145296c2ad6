"""``underclock predict`` as a user types it."""

import json
from pathlib import Path

import pytest

from underclock.app import main
from underclock.records import Clocks, Evidence, GpuInfo, Kernel, SampleSet, Utilisation, Window
from underclock.store import SampleFile

pytestmark = pytest.mark.slow

_COPY = Utilisation(sm=1.0, tensor=0.0, fp32=0.2, dram=0.9)
_PRODUCT = Utilisation(sm=1.0, tensor=0.8, fp32=0.1, dram=0.2)
_FOREIGN = """gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w
Frobnicator 9000,a,,,1.0,100,100
Frobnicator 9000,b,,,2.0,300,150
"""
_LOCKED = """gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w
RTX 3080 Ti,a,1500,9501,1.0,200,200
RTX 3080 Ti,b,1500,9501,2.0,500,250
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("foreign.csv").write_text(_FOREIGN)
    Path("locked.csv").write_text(_LOCKED)


@pytest.fixture
def auto_samples() -> str:
    """Return a step measured at auto clocks only, on a GPU that counts."""
    header = SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="H200", power_limit_w=700.0),
        workload="train",
        kernels=(Kernel(name="copy", count=3), Kernel(name="gemm", count=2)),
        warnings=("a neighbour computes",),
    )
    full = Clocks(core_mhz=1980, mem_mhz=3201)
    with SampleFile.create(Path("samples.db"), header) as file:
        for name, energy_j, busy in (("copy", 400.0, _COPY), ("gemm", 600.0, _PRODUCT)):
            file.append(
                Window(kernel=name, time_s=1.0, energy_j=energy_j, observed=full, utilisation=busy)
            )
    return "samples.db"


def _fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["predict", *arguments])
    return int(ended.value.code or 0), capsys.readouterr().err


def test_a_sentence_a_table_and_what_to_doubt(
    auto_samples: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["predict", auto_samples, "--max-slowdown", "1%"])
    said = capsys.readouterr()

    words = " ".join(said.out.split())
    assert words.startswith("energy would change by about -")
    assert "95 %) at <= 1 % slower, predicted from auto clocks only; measuring would tell" in words
    assert "predicted from measured samples" in words
    assert "best fixed clock" in words
    assert "2 of 2 kernels with utilisation" in words
    assert "a neighbour computes" in said.err
    assert "warning: a neighbour computes" in said.err
    assert "no readings of utilisation" not in said.err
    assert max(len(line) for line in said.out.splitlines()[1:]) <= 80


def test_json_for_machines(auto_samples: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["predict", auto_samples, "--max-slowdown", "5%", "--json"])
    found = json.loads(capsys.readouterr().out)

    assert found["evidence"] == "measured"
    assert found["like"] == "sim:h200"
    assert found["counted"] == found["kernels"] == 2
    change = found["arms"][-1]["energy_change"]
    assert change["low"] < change["expected"] < change["high"] < 0


def test_another_gpu_may_stand_in_but_not_silently(capsys: pytest.CaptureFixture[str]) -> None:
    main(["predict", "foreign.csv", "--like", "sim:a100"])
    said = capsys.readouterr().err

    assert "the samples are of Frobnicator 9000; NVIDIA A100-SXM4-40GB stands for it" in said
    assert "2 of 2 kernels have no readings of utilisation" in said
    assert "the interval is wider" in said


def test_an_unknown_gpu_needs_one_that_is_like_it(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = _fails(capsys, "foreign.csv")

    assert code == 2
    assert "nothing is known of a GPU called 'Frobnicator 9000'" in said
    assert "--like" in said
    assert "sim:rtx3080ti" in said


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert _fails(capsys, "foreign.csv", "--like", "sim:rtx3081")[0] == 2
    assert _fails(capsys, "foreign.csv", "--like", "nowhere.json")[0] == 4


def test_samples_without_auto_rows(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = _fails(capsys, "locked.csv")

    assert code == 4
    assert "'a' has no sample at core auto, memory auto" in said
    assert "--baseline" in said

    main(["predict", "locked.csv", "--baseline", "1500,9501"])
    assert "energy would change by" in capsys.readouterr().out


def test_a_budget_below_auto_is_refused(
    auto_samples: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = _fails(capsys, auto_samples, "--max-slowdown", "-1%")

    assert code == 2
    assert "-1.00%" in said


def test_no_kernel_at_all_cannot_come_about() -> None:
    with pytest.raises(ValueError, match="name"):
        Kernel(name="")
    Path("empty.csv").write_text("gpu,kernel,core_mhz,mem_mhz,time_s,energy_j\n")
    with pytest.raises(SystemExit) as ended:
        main(["predict", "empty.csv"])
    assert ended.value.code == 4
