"""``underclock breakdown`` as a user types it."""

import json
from pathlib import Path

import pytest

from underclock.app import main
from underclock.records import (
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    SampleSet,
    ThrottleReason,
    Utilisation,
    Window,
)
from underclock.store import SampleFile

_TABLE = """gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w,count
G,a,,,1.0,100,100,3
G,a,900,,1.1,80,72,3
G,b,,,2.0,300,150,1
"""
_DRAM = Utilisation(sm=1.0, tensor=0.1, fp32=0.1, dram=0.9)
_TENSOR = Utilisation(sm=1.0, tensor=0.9, fp32=0.1, dram=0.2)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.csv").write_text(_TABLE)


@pytest.fixture
def samples() -> str:
    """Return a samples file with counters, as a real GPU gives them."""
    header = SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="G"),
        workload="train",
        kernels=(Kernel(name="copy"), Kernel(name="gemm")),
        warnings=("a neighbour computes",),
    )
    full = Clocks(core_mhz=1980, mem_mhz=2619)
    low = Clocks(core_mhz=1700)
    with SampleFile.create(Path("samples.db"), header) as file:
        for name, energy_j, busy in (("copy", 25.0, _DRAM), ("gemm", 75.0, _TENSOR)):
            file.append(
                Window(
                    kernel=name,
                    time_s=1.0,
                    energy_j=energy_j,
                    observed=full,
                    throttle_reasons=ThrottleReason.NONE,
                    utilisation=busy,
                )
            )
            slower_s = 1.16 if name == "gemm" else 1.01
            file.append(Window(kernel=name, asked=low, time_s=slower_s, energy_j=energy_j))
    return "samples.db"


def test_four_tables_for_people_and_what_is_within_reach(
    samples: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["breakdown", samples])
    said = capsys.readouterr()

    words = " ".join(said.out.split())
    assert "train on G at auto clocks: measured" in words
    for title in ("by pass", "by operator", "by what bounds the kernel", "how time follows"):
        assert title in words
    assert "25.0% of its energy goes to kernels whose time does not follow the core" in words
    assert "at which core clock the step runs is unknown" in words
    assert "warning: a neighbour computes" in said.err
    assert max(len(line) for line in said.out.splitlines()) <= 80


def test_machines_get_json(samples: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["breakdown", samples, "--json"])
    found = json.loads(capsys.readouterr().out)

    assert (found["energy_j"], found["reachable_j"]) == (100.0, 25.0)
    assert [part["name"] for part in found["by_bound"]] == ["core", "not core"]
    assert [part["follows"] for part in found["kernels"]] == ["core", "not core"]
    assert found["kernels"][0]["bound"] == "tensor"
    assert found["step_clock"] is None
    assert found["closure"] is None


def test_a_table_has_neither_clocks_nor_counters_and_nothing_is_made_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["breakdown", "sweep.csv", "--json"])
    found = json.loads(capsys.readouterr().out)
    main(["breakdown", "sweep.csv"])
    said = capsys.readouterr().out

    assert (found["time_s"], found["energy_j"]) == (5.0, 600.0)
    assert (found["reachable_j"], found["step_clock"]) == (None, None)
    assert found["undecided_j"] == pytest.approx(600.0)
    assert [part["name"] for part in found["by_bound"]] == ["not measured"]
    words = " ".join(said.split())
    assert "what bounds the kernels is unknown" in words
    assert "of its energy" not in words


@pytest.mark.slow
def test_a_simulated_gpu_has_clocks_but_no_counters(capsys: pytest.CaptureFixture[str]) -> None:
    main(["trace", "gpt3-125m", "--size", "layers=1", "-o", "step.json"])
    main(["measure", "step.json", "--gpu", "sim:rtx3080ti", "-o", "s.db", "--core-mhz", "auto"])
    capsys.readouterr()
    main(["breakdown", "s.db"])
    said = " ".join(capsys.readouterr().out.split())

    assert "simulated" in said
    assert "no counters were read" in said
    assert "0.0% of the energy" not in said


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("nowhere.db", "cannot read nowhere.db"),
        ("locked.csv", "'b' was not measured at auto clocks"),
        ("junk.db", "no SQLite database"),
    ],
)
def test_what_cannot_be_broken_down_is_one_sentence_and_a_code(
    file: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("locked.csv").write_text(_TABLE.replace("G,b,,,", "G,b,900,,"))
    Path("junk.db").write_bytes(b"junk")
    with pytest.raises(SystemExit) as ended:
        main(["breakdown", file])
    said = capsys.readouterr()

    assert ended.value.code == 4
    assert sentence in said.err
    assert said.out == ""
