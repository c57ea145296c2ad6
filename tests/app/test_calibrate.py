"""Simulated GPUs made of sweeps: the packaged ones, and a user's own."""

import json
from pathlib import Path

import pytest

from calibrate import calibrate_gpu, check_calibration
from underclock.app.backends import open_measurer
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.campaign.grid import Campaign
from underclock.errors import DataError
from underclock.gpus.models import encode, gpu_model

pytestmark = pytest.mark.slow

_MEASURED = Path(__file__).parents[3] / "shared" / "data" / "measured"
_H200 = Path(__file__).parents[2] / "docs" / "evidence" / "h200"
_SWEEPS = {
    "rtx3080ti": "rtx3080ti_kernels.csv",
    "a40": "a40_llm_stages.csv",
    "a100": "a100_apps.csv",
    "titanx": "titanx_apps.csv",
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small sweep of two kernels, one bound by the core and one by memory."""
    path = tmp_path_factory.mktemp("sweep") / "sweep.csv"
    rows = ["gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w"]
    for core in (500, 800, 1100, 1400, 1700):
        for mem in (2000, 4000):
            product_s, copy_s = 1.0 / core, 1.0 / mem + 0.05 / core
            for name, time_s, share in (("product", product_s, 60.0), ("copy", copy_s, 20.0)):
                watts = 30 + 0.005 * mem + share * core / 1000 * (1.0 if core < 1200 else 1.4)
                rows.append(f"my GPU,{name},{core},{mem},{time_s},{watts * time_s},{watts}")
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("name", list(_SWEEPS))
def test_a_packaged_gpu_predicts_its_sweep_from_four_rows_a_kernel(name: str) -> None:
    table = _MEASURED / _SWEEPS[name]
    if not table.exists():
        pytest.skip("the measured sweeps are not beside this checkout")
    check = check_calibration(table, name)

    assert check.time <= 0.04
    assert check.power <= 0.04


def test_the_simulated_h200_runs_its_measured_layer() -> None:
    listed = json.loads((_H200 / "steered-layer-3.json").read_text())
    own = {item.kernel.name: item.kernel for item in gpu_model("h200").own}
    names = [kernel["name"] for kernel in listed["step"]["kernels"]]
    kernels = [own[f"layer: {names[k]}"] for k in listed["step"]["order"]]
    with open_measurer("sim:h200#smooth") as measurer:
        measurer.warm(kernels)
        run = measurer.measure(kernels)

    # What it took on a real one, settled at its cap: 692.8 W, and 1741 MHz in the mean.
    assert run.time_s == pytest.approx(35.37e-3, rel=0.015)
    assert run.energy_j == pytest.approx(24.55, rel=0.015)
    assert run.observed is not None
    assert run.observed.core_mhz == pytest.approx(1741, rel=0.03)


def test_a_users_sweep_becomes_a_gpu_that_can_be_measured_and_planned(
    table: Path, tmp_path: Path
) -> None:
    model = calibrate_gpu(table, date="2026-01-02")
    (tmp_path / "my.json").write_text(encode(model))
    spec = f"sim:{tmp_path / 'my.json'}"
    sample_set = measure(gpu=spec, to=tmp_path / "s.db", campaign=Campaign(core_mhz=(800, 1700)))
    made = plan(sample_set)

    assert model.name == "my GPU"
    assert "2026-01-02" in str(model.calibration)
    assert {kernel.name for kernel in sample_set.kernels} == {"product", "copy"}
    assert made.evidence == "simulated"
    assert made.promise.energy_change <= 0


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("{}", "not a readable GPU model"),
        ("rubbish", "not a readable GPU model"),
        ('{"schema": 99}', "has schema 99"),
    ],
)
def test_a_damaged_model_is_refused(tmp_path: Path, body: str, sentence: str) -> None:
    path = tmp_path / "my.json"
    path.write_text(body)
    with pytest.raises(DataError, match=sentence):
        gpu_model(str(path))
    with pytest.raises(DataError, match="cannot read"):
        gpu_model(str(tmp_path / "nowhere.json"))
