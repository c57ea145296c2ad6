"""Predicting from auto clocks, against what measuring at all clocks then gives."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import underclock
from underclock.app import main
from underclock.app.predicting import is_fitted, own_kernels, planned_settings, predict, prior_of
from underclock.core.planning.strategies import compare_strategies
from underclock.core.prediction.prior import FITTED, PUBLISHED
from underclock.core.step.table import cost_table
from underclock.errors import DataError, UsageError
from underclock.gpus.models import encode, gpu_model
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    MeasurementSettings,
    SampleSet,
    Strategy,
    Utilisation,
    Window,
)
from underclock.report import prediction_sentence
from underclock.store import SampleFile, read_table
from underclock.workloads import workload
from windows import having

pytestmark = pytest.mark.slow

_MEASURED = Path(__file__).parents[3] / "shared" / "data" / "measured"
_BRIEF = MeasurementSettings(warm_s=20.0, steady_s=5.0, kernel_warm_s=5.0, window_s=1.0)
_DRAWS = 24


@dataclass(frozen=True)
class Sweep:
    """Samples of a step on a simulated GPU."""

    gpu: str
    samples: SampleSet


@pytest.fixture(scope="module", params=["h200", "rtx3080ti"])
def swept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Measure a step at few of a GPU's clocks; this GPU has counters, whatever the model has."""
    gpu, folder = request.param, tmp_path_factory.mktemp(request.param)
    model = dataclasses.replace(gpu_model(gpu), counters=True)
    file = folder / "gpu.json"
    file.write_text(encode(model))
    campaign = underclock.Campaign(
        core_mhz=(*model.core_mhz[-1::-20], None),
        mem_mhz=(None, 5001) if model.memory_lockable else (None,),
    )
    return Sweep(
        gpu=gpu,
        samples=underclock.measure(
            workload("gpt3-xl", {"layers": 1}),
            gpu=f"sim:{file}",
            to=folder / "all.db",
            campaign=campaign,
            measuring=_BRIEF,
        ),
    )


def _truth(sample_set: SampleSet, budget: float) -> float:
    arm = compare_strategies(cost_table(sample_set), underclock.Goal(max_slowdown=budget)).arms[-1]
    assert arm.name == Strategy.KERNEL_GLOBAL
    assert arm.energy_change is not None
    return arm.energy_change


@pytest.mark.parametrize("counts", [True, False])
def test_the_interval_covers_what_measuring_the_other_kernels_gives(
    swept: Sweep, *, counts: bool
) -> None:
    every = swept.samples if counts else _uncounted(swept.samples)
    measured = {kernel.name for kernel in every.kernels[::2]}
    some = tuple(s for s in every.samples if s.asked == AUTO or s.kernel in measured)
    truth = _truth(every, 0.05)

    prediction = predict(
        having(every, samples=some),
        max_slowdown=0.05,
        like=f"sim:{swept.gpu}",
        draws=_DRAWS,
    )

    change = prediction.arm(Strategy.KERNEL_GLOBAL).energy_change
    assert change.low <= truth <= change.high
    assert change.high - change.low < 0.15
    assert prediction.evidence is Evidence.SIMULATED
    assert prediction.counted == (prediction.kernels if counts else 0)
    assert any("no readings" in sentence for sentence in prediction.warnings) is not counts


def _uncounted(sample_set: SampleSet) -> SampleSet:
    """Return what a GPU without counters would have measured."""
    samples = (msgspec.structs.replace(s, utilisation=None) for s in sample_set.samples)
    return having(sample_set, samples=tuple(samples))


@pytest.mark.skipif(not _MEASURED.is_dir(), reason="the shared measurements are not here")
def test_the_interval_covers_what_a_measured_sweep_gives() -> None:
    sample_set = read_table(_MEASURED / "rtx3080ti_kernels.csv")
    auto = tuple(sample for sample in sample_set.samples if sample.asked == AUTO)

    prediction = predict(having(sample_set, samples=auto), max_slowdown=0.01)

    change = prediction.arm(Strategy.KERNEL_GLOBAL).energy_change
    assert prediction.evidence is Evidence.REPLAYED
    assert prediction.like == "sim:rtx3080ti"
    assert change.low <= _truth(sample_set, 0.01) <= change.high


def _one(gpu: str) -> SampleSet:
    return SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name=gpu),
        workload="train",
        kernels=(Kernel(name="a"),),
        windows=(Window(kernel="a", time_s=1.0, energy_j=120.0),),
    )


@pytest.mark.parametrize("gpu", ["NVIDIA RTX A4000", "RTX A4000", "rtx a4000"])
def test_a_gpu_is_known_by_its_name_without_brands(gpu: str) -> None:
    prediction = predict(_one(gpu), draws=5)

    assert prediction.like == "sim:a4000"
    assert any("no sweep of NVIDIA RTX A4000" in sentence for sentence in prediction.warnings)


def test_the_same_seed_predicts_the_same() -> None:
    one, two, other = (
        predict(_one("A100-SXM4-40GB"), max_slowdown=0.05, draws=5, seed=seed) for seed in (1, 1, 2)
    )

    assert one == two
    assert one.without_measuring != other.without_measuring


def test_nothing_comes_of_no_draws() -> None:
    with pytest.raises(UsageError, match="0 draws"):
        predict(_one("A40"), draws=0)


def test_an_arm_that_was_not_compared_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="achievable"):
        predict(_one("A40"), draws=2).arm(Strategy.ACHIEVABLE)


def test_a_step_may_be_like_the_kernels_of_any_sweep() -> None:
    fitted, guessed = gpu_model("a100"), gpu_model("a4000")
    own = own_kernels(fitted)

    assert is_fitted(fitted)
    assert prior_of(fitted).references[: len(own)] == own
    assert {kernel.source for kernel in own} == {fitted.name}
    assert len({kernel.source for kernel in prior_of(fitted).references}) > 3
    assert not is_fitted(guessed)
    assert len(prior_of(guessed).references) >= len(prior_of(fitted).references)
    assert prior_of(guessed).dram_j_per_mcycle > 0


def test_a_model_of_another_gpu_is_known_less_well() -> None:
    model = gpu_model("a100")

    own, other = prior_of(model, "NVIDIA A100-SXM4-40GB"), prior_of(model, "Another")

    assert (own.off, own.deviations) == (1.0, FITTED)
    assert (other.off, other.deviations) == (2.0, PUBLISHED)


def _busy(gpu: str, power_w: float, **changes: object) -> SampleSet:
    samples = tuple(
        Window(kernel=name, time_s=1.0, energy_j=power_w, **changes)  # type: ignore[arg-type]
        for name in ("a", "b", "c")
    )
    kernels = tuple(Kernel(name=sample.kernel) for sample in samples)
    return having(_one(gpu), kernels=kernels, samples=samples)


def test_a_prior_that_nothing_contradicts_says_what_could_not_be_checked() -> None:
    prediction = predict(_busy("A100-SXM4-40GB", 250.0), draws=5)

    assert prediction.off == 1.0
    assert any("do not show how kernels follow clocks" in each for each in prediction.warnings)
    assert not any("off by a factor" in each for each in prediction.warnings)


def test_a_prior_that_is_off_widens_and_says_so() -> None:
    hot = _busy("A100-SXM4-40GB", 250.0, observed=Clocks(core_mhz=1200), temperature_c=40.0)

    prediction = predict(hot, draws=5)

    assert prediction.off > 1.5
    (sentence,) = [each for each in prediction.warnings if "off by a factor" in each]
    assert "the core ran at 1200 MHz" in sentence


def test_rows_at_other_clocks_are_what_is_planned_on_and_narrow_the_interval() -> None:
    sample_set = _busy("A100-SXM4-40GB", 250.0)
    clocks = [Clocks(core_mhz=mhz) for mhz in (705, 900, 1110, 1305)]
    kernels = tuple(
        msgspec.structs.replace(k, name=f"{k.name}{i}") for k in sample_set.kernels for i in (1, 2)
    )
    rows = [
        Window(kernel=kernel.name, asked=at, time_s=1.0, energy_j=250.0 * (at.core_mhz or 0) / 1410)
        for kernel in kernels
        for at in clocks
    ]
    auto = [Window(kernel=kernel.name, time_s=1.0, energy_j=250.0) for kernel in kernels]
    alone = having(sample_set, kernels=kernels, samples=tuple(auto))
    more = having(alone, samples=(*auto, *rows))

    before, after = (predict(each, max_slowdown=0.01, draws=30) for each in (alone, more))

    wide, narrow = (each.arm(Strategy.KERNEL_GLOBAL).energy_change for each in (before, after))
    assert narrow.high - narrow.low < 0.3 * (wide.high - wide.low)
    assert narrow.expected == pytest.approx(705 / 1410 - 1.0, abs=0.05)
    assert not any("do not show how kernels follow" in each for each in after.warnings)
    assert (before.elsewhere, after.elsewhere) == (0, len(rows))
    assert "from auto clocks only" in prediction_sentence(before)
    assert f"from auto clocks and {len(rows)} rows at others" in prediction_sentence(after)


def test_thousands_of_kernels_are_predicted_as_their_sums_are() -> None:
    sample_set = _busy("A100-SXM4-40GB", 250.0)
    kernels = tuple(Kernel(name=f"k{i}", count=1 + i % 3) for i in range(3000))
    samples = tuple(
        Window(kernel=kernel.name, time_s=1e-3 * (1 + i % 7), energy_j=0.25 * (1 + i % 7))
        for i, kernel in enumerate(kernels)
    )
    many = having(sample_set, kernels=kernels, samples=samples)

    prediction = predict(many, max_slowdown=0.01, draws=5)

    assert prediction.kernels == 3000
    assert prediction.arm(Strategy.KERNEL_GLOBAL).time_change.high <= 0.01 + 1e-9


def test_a_prior_of_a_gpu_that_is_quite_another_is_refused() -> None:
    slow = _busy(
        "Another",
        20.0,
        observed=Clocks(core_mhz=300, mem_mhz=200),
        temperature_c=40.0,
    )

    with pytest.raises(DataError, match="times further from what sim:a100 lets expect") as caught:
        predict(slow, like="sim:a100", draws=5)

    assert "--like" in caught.value.hint


def test_only_clocks_that_hold_are_planned_with() -> None:
    model = gpu_model("rtx3080ti")
    slowest = model.mem_mhz[0]

    for clocks in planned_settings(model):
        assert clocks.core_mhz is None or clocks.core_mhz in model.core_mhz
        if clocks.mem_mhz == slowest:
            assert clocks.core_mhz is not None
            assert clocks.core_mhz <= (model.low_mem_core_mhz or 0)
    assert all(clocks.mem_mhz is None for clocks in planned_settings(gpu_model("a100")))


def test_progress_goes_from_drawing_to_planning_and_ends() -> None:
    shares: list[float] = []
    kernels = (Kernel(name="a"), Kernel(name="b"))
    sample_set = SampleSet(
        evidence=Evidence.REPLAYED,
        gpu=GpuInfo(name="RTX 3080 Ti"),
        workload="w",
        kernels=kernels,
        windows=tuple(Window(kernel=k.name, time_s=1.0, energy_j=200.0) for k in kernels),
    )
    told = predict(sample_set, draws=4, progress=shares.append)

    assert shares == sorted(shares)
    assert len(shares) == 8
    assert shares[-1] == pytest.approx(1.0)
    assert told == predict(sample_set, draws=4)


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
