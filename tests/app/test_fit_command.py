"""``underclock fit`` as a user types it."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from underclock.app import main
from underclock.records import (
    SCHEMAS,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    SampleSet,
    ThrottleReason,
    Window,
)
from underclock.store import SampleFile

_CORES = (900, 1200, 1500, 1800)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _file(
    path: str,
    *,
    gpu: str = "G",
    driver: str = "1",
    cores: tuple[int, ...] = _CORES,
    capped: str = "",
    strange: str = "",
    again: float | None = None,
) -> str:
    """Write a samples file of five kernels.

    Args:
        path: Where.
        gpu: Its name.
        driver: Its driver.
        cores: Core clocks measured.
        capped: Kernels all of whose samples ran at the power cap.
        strange: A kernel that follows no physics.
        again: A repeat of one sample takes this many times as long.
    """
    header = SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name=gpu, driver=driver, power_limit_w=300.0),
        workload="train",
        kernels=tuple(Kernel(name=name) for name in "abcdefgh"),
    )
    with SampleFile.create(Path(path), header) as file:
        for name in "abcdefgh":
            for i, core in enumerate(cores):
                for mem in (5001, 9251):
                    time_s = (ord(name) - 90) / core + 20.0 / mem
                    time_s *= 2.0 if name == strange and i % 2 else 1.0
                    sample = Window(
                        kernel=name,
                        asked=Clocks(core_mhz=core, mem_mhz=mem),
                        time_s=time_s,
                        energy_j=time_s * (50.0 + core / 10.0 + mem / 200.0),
                        throttle_reasons=ThrottleReason.SW_POWER_CAP
                        if name in capped
                        else ThrottleReason.NONE,
                    )
                    file.append(sample)
        if again is not None:
            file.append(
                Window(
                    kernel=sample.kernel,
                    asked=sample.asked,
                    repeat=1,
                    time_s=sample.time_s * again,
                    energy_j=sample.energy_j * again,
                )
            )
    return path


@pytest.mark.slow
def test_two_tables_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", _file("samples.db", capped="b", strange="d")])
    said = capsys.readouterr()

    words = " ".join(said.out.split())
    assert "G, fitted to train: measured" in words
    for name in ("voltage rises from", "memory at 5001 MHz", "bytes per cycle at 5001 MHz"):
        assert name in words
    assert "56 rows at known clocks, from 64 samples; the power cap holds at" in words
    assert "keeps its own" in words
    assert "no usable" in words
    assert "common to all kernels" in words
    assert "warning: no sample of 'b' ran at clocks that held" in said.err
    assert max(len(line) for line in said.out.splitlines()) <= 80


@pytest.mark.slow
def test_machines_get_json_and_the_file_holds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    _file("one.db")
    main(["fit", "one.db", "--json", "-o", "fit.json", "--baseline", "1200,5001"])
    found = json.loads(capsys.readouterr().out)

    assert json.loads(Path("fit.json").read_text()) == found
    assert found["schema"] == SCHEMAS["fit"]
    assert found["kernels"][0]["clocks"] == {"core_mhz": 1200, "mem_mhz": 5001}
    assert all(kernel["described"] for kernel in found["kernels"])


@pytest.mark.slow
def test_a_file_is_replaced_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    _file("one.db")
    Path("fit.json").write_text("{}")
    with pytest.raises(SystemExit) as ended:
        main(["fit", "one.db", "-o", "fit.json"])
    assert ended.value.code == 2
    assert Path("fit.json").read_text() == "{}"

    main(["fit", "one.db", "-o", "fit.json", "--force"])
    assert "schema" in Path("fit.json").read_text()
    assert "boosts to" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_simulated_gpu_boosts_to_a_clock_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    main(["trace", "gpt3-125m", "--size", "layers=1", "-o", "step.json"])
    cores = "auto,900:1500:300"
    main(["measure", "step.json", "--gpu", "sim:rtx3080ti", "-o", "s.db", "--core-mhz", cores])
    capsys.readouterr()
    main(["fit", "s.db"])
    said = " ".join(capsys.readouterr().out.split())

    assert "simulated" in said
    assert "boosts to" in said


def _two_gpus() -> str:
    return f"{_file('one.db')} {_file('two.db', gpu='H')}"


def _two_drivers() -> str:
    return f"{_file('one.db')} {_file('two.db', driver='2')}"


def _none() -> str:
    header = SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="G"),
        workload="train",
        kernels=(Kernel(name="a"),),
    )
    SampleFile.create(Path("none.db"), header).close()
    return "none.db"


def _backwards() -> str:
    """Return a file whose energy counter seems to have gone backwards."""
    path = _file("back.db")
    with closing(sqlite3.connect(path)) as database, database:
        change = "UPDATE windows SET body = replace(body, 'energy_j', 'energy')"
        database.execute(f"{change} WHERE body LIKE ?", ('%"c"%',))
    return path


@pytest.mark.parametrize(
    ("files", "sentence", "hint"),
    [
        (_two_gpus, "samples from two GPUs or drivers in one fit: G", "each by themselves"),
        (_two_drivers, "G (driver 1, 300 W) and G (driver 2, 300 W)", "measure again"),
        (lambda: _file("c.db", capped="abcdefgh"), "all 64 samples ran", "lower core clocks"),
        (_backwards, "window 17 is not as it was written", "measure again"),
        (_none, "no samples to fit", "measure first"),
        (lambda: "nowhere.db", "cannot read nowhere.db", ""),
    ],
)
def test_what_cannot_be_fitted_is_one_sentence_and_a_code(
    files: object, sentence: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(files)
    names = str(files()).split()
    with pytest.raises(SystemExit) as ended:
        main(["fit", *names, "-o", "fit.json"])
    said = capsys.readouterr()

    assert ended.value.code == 4
    assert sentence in said.err
    assert hint in said.err
    assert said.out == ""
    assert not Path("fit.json").exists()


def test_no_file_at_all_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fit"])

    assert ended.value.code == 2
