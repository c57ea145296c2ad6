"""A campaign that goes on after libraries chose other algorithms for some operators."""

from pathlib import Path

import msgspec
import pytest

from underclock.app.measuring import measure
from underclock.campaign.grid import Campaign
from underclock.errors import UsageError
from underclock.records import Launch, MeasurementSettings, SampleSet, Step
from underclock.store import read_samples
from underclock.workloads import workload

_BRIEF = MeasurementSettings(
    warm_s=2.0, steady_s=1.0, steady_c=99.0, settle_s=0.1, kernel_warm_s=0.1, window_s=0.2
)
_TWO = Campaign(core_mhz=(1050, None), mem_mhz=(None,))


def traced(**functions: str) -> Step:
    """Return a step as if it had been traced, each kernel by a function of its name or a given."""
    step = workload("gpt3-125m", {"layers": 1, "batch": 4})
    kernels = []
    for kernel in step.kernels:
        function = functions.get(kernel.name.split()[0], kernel.name)
        launch = Launch(function=function, operator=kernel.name, identity=function)
        kernels.append(msgspec.structs.replace(kernel, launch=launch))
    return msgspec.structs.replace(step, kernels=tuple(kernels))


def run(step: Step, path: Path) -> SampleSet:
    return measure(step, gpu="sim:rtx3080ti", to=path, campaign=_TWO, measuring=_BRIEF)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("begun") / "s.db"
    run(traced(), path)
    return path


@pytest.fixture
def path(begun: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "s.db"
    copy.write_bytes(begun.read_bytes())
    return copy


NAME = traced().kernels[0].name


@pytest.mark.untraced
def test_what_runs_otherwise_is_set_apart_and_measured_anew(path: Path) -> None:
    before = read_samples(path)
    after = run(traced(**{NAME.split()[0]: "another"}), path)

    changed = {kernel.name for kernel in after.kernels if kernel.launch.function == "another"}  # type: ignore[union-attr]
    assert NAME in changed
    assert len(changed) < len(after.kernels)
    kept = [sample for sample in before.samples if sample.kernel not in changed]
    assert [sample for sample in after.samples if sample.kernel not in changed] == kept
    assert len(after.samples) == len(before.samples) == after.expected_samples
    assert len(after.in_situ) == len(before.in_situ)
    assert after.step.fingerprint != before.step.fingerprint

    apart = read_samples(path.with_suffix(".1.db"))
    assert apart == before
    left = len(before.windows) - len(kept)
    (note,) = [each for each in after.warnings if "other algorithms" in each]
    assert f"{left} measurements" in note
    assert "lie in s.1.db" in note
    assert read_samples(path) == after


@pytest.mark.parametrize("seed", [0, 3])
def test_what_differs_otherwise_is_refused_and_nothing_is_touched(path: Path, seed: int) -> None:
    before = read_samples(path)
    other = traced(**{NAME.split()[0]: "another"})
    if not seed:  # one launch less
        order = other.order[:-1]
        kernels = [
            msgspec.structs.replace(kernel, count=order.count(k))
            for k, kernel in enumerate(other.kernels)
            if order.count(k)
        ]
        other = msgspec.structs.replace(other, kernels=tuple(kernels), order=order)
    with pytest.raises(UsageError, match=r"another (step|seed)"):
        measure(
            other,
            gpu="sim:rtx3080ti",
            to=path,
            campaign=_TWO,
            measuring=_BRIEF,
            seed=seed,
        )
    assert read_samples(path) == before
    assert [each.name for each in path.parent.iterdir()] == ["s.db"]
