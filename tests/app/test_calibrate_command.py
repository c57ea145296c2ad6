"""``underclock calibrate`` as a user types it."""

import json
from pathlib import Path

import pytest

from underclock.app import main


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = ["gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w"]
    for core in (500, 800, 1100, 1400, 1700):
        for name, time_s, share in (("product", 1.0 / core, 60.0), ("copy", 1e-3, 20.0)):
            watts = 40 + share * core / 1000 * (1.0 if core < 1200 else 1.4)
            rows.append(f"my GPU,{name},{core},,{time_s},{watts * time_s},{watts}")
    Path("sweep.csv").write_text("\n".join(rows) + "\n")


@pytest.mark.slow
def test_a_sweep_becomes_a_gpu_that_can_be_checked_and_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["calibrate", "sweep.csv", "-o", "my.json"])
    main(["calibrate", "sweep.csv", "--gpu", "sim:my.json", "--check", "--points", "3"])
    main(["measure", "--gpu", "sim:my.json", "-o", "samples.db", "--core-mhz", "800,1700"])
    main(["doctor", "--gpu", "sim:my.json"])
    said = capsys.readouterr().out

    assert "fitted to 10 rows of sweep" in said
    assert "mean error: time" in said
    assert "product" in said
    assert "2 kernels" in said


@pytest.mark.slow
def test_machines_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["calibrate", "sweep.csv", "-o", "my.json", "--json"])
    made = json.loads(capsys.readouterr().out)
    main(["calibrate", "sweep.csv", "--gpu", "sim:my.json", "--check", "--points", "3", "--json"])
    found = json.loads(capsys.readouterr().out)

    assert made["file"] == "my.json"
    assert made["calibration"]["rows"] == 10
    assert found.keys() >= {"time_mape", "power_mape", "kernels"}
    assert found["kernels"].keys() == {"product", "copy"}


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("calibrate sweep.csv", 2, "say where the simulated GPU goes"),
        ("calibrate sweep.csv --check", 2, "--check needs --gpu"),
        ("calibrate sweep.csv --check --gpu sim:rtx3080ti -o x.json", 2, "writes no file"),
        ("calibrate sweep.csv -o sweep.csv", 2, "must end in .json"),
        ("calibrate sweep.csv -o nowhere/my.json", 2, "no folder nowhere"),
        ("calibrate nowhere.csv -o my.json", 4, "cannot read nowhere.csv"),
        ("calibrate sweep.csv --check --gpu sim:nobody", 2, "no simulated GPU"),
        ("calibrate sweep.csv --check --gpu sim:sweep.json", 4, "cannot read sweep.json"),
    ],
)
def test_what_cannot_be_calibrated_is_one_sentence_and_a_code(
    arguments: str, code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    said = capsys.readouterr()

    assert ended.value.code == code
    assert sentence in said.err
    assert "Traceback" not in said.err
    assert {path.name for path in Path().iterdir()} == {"sweep.csv"}
