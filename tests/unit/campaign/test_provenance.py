"""What a file rests on: what may go on in it, what may be used elsewhere, and what that says."""

from pathlib import Path

import msgspec
import pytest

import underclock
from underclock.app.backends import open_measurer
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.app.validating import validate
from underclock.campaign.grid import Campaign, Grid
from underclock.core.planning.best_choice import Goal
from underclock.errors import DataError, UsageError
from underclock.records import (
    Clocks,
    MeasurementSettings,
    Plan,
    Provenance,
    SampleSet,
    Step,
)
from underclock.store import SampleFile, read_samples, write_document
from underclock.workloads import workload
from windows import having

_BRIEF = MeasurementSettings(
    warm_s=2.0, steady_s=1.0, steady_c=99.0, settle_s=0.1, kernel_warm_s=0.1, window_s=0.2
)
_TWO = Campaign(core_mhz=(1050, None), mem_mhz=(None,))
_TABLE = """gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w
G,a,,,1.0,100,
G,a,900,,1.05,80,
"""


@pytest.fixture(scope="module")
def step() -> Step:
    return workload("gpt3-125m", {"layers": 1, "batch": 4})


def _measure(step: Step, path: Path, gpu: str = "sim:rtx3080ti", **more: object) -> SampleSet:
    usual: dict[str, object] = {"campaign": _TWO, "measuring": _BRIEF}
    return measure(step, gpu=gpu, to=path, **usual | more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def begun(step: Step, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("begun") / "s.db"
    _measure(step, path)
    return path


@pytest.mark.untraced
def test_a_file_says_what_its_samples_rest_on(begun: Path) -> None:
    found = read_samples(begun)

    with open_measurer("sim:rtx3080ti") as measurer:
        assert found.gpu == measurer.info()
    assert found.gpu.uuid
    assert found.gpu.power_limit_w == 350.0
    assert found.provenance == Provenance(
        measuring=_BRIEF, in_situ=True, seed=0, version=underclock.__version__
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpu": "sim:rtx3080ti#1"}, ("another GPU", "board GPU-", "this run has board GPU-")),
        ({"gpu": "sim:a40"}, ("another GPU", "RTX 3080 Ti", "A40")),
        ({"seed": 3}, ("another seed", "--seed 0", "--seed 3")),
        (
            {"measuring": msgspec.structs.replace(_BRIEF, window_s=0.3)},
            ("another measuring settings", "window_s 0.2", "window_s 0.3"),
        ),
        (
            {"measuring": msgspec.structs.replace(_BRIEF, warm_s=3.0)},
            ("another measuring settings", "warm_s 2", "warm_s 3"),
        ),
        (
            {"campaign": Campaign(core_mhz=(1050, None), mem_mhz=(None,), in_situ=False)},
            ("another closure", "the whole step run too", "isolated kernels only"),
        ),
    ],
)
def test_what_rests_on_something_else_is_refused(
    step: Step, begun: Path, change: dict[str, object], words: tuple[str, ...]
) -> None:
    before = read_samples(begun)

    with pytest.raises(UsageError, match="they do not mix") as caught:
        _measure(step, begun, **change)  # type: ignore[arg-type]

    for word in (str(begun), *words):
        assert word in str(caught.value)
    assert "another file with -o" in caught.value.hint
    assert read_samples(begun) == before


def test_another_table_of_the_same_name_is_refused(tmp_path: Path) -> None:
    table, to = tmp_path / "t.csv", tmp_path / "s.db"
    table.write_text(_TABLE)
    first = measure(gpu=f"replay:{table}", to=to, seed=1)
    assert measure(gpu=f"replay:{table}", to=to, seed=2) == first  # a table has no noise to seed

    table.write_text(_TABLE.replace("1.0,100", "7.0,700").replace("1.05,80", "7.35,560"))
    with pytest.raises(UsageError, match="samples of another table: it was begun with content"):
        measure(gpu=f"replay:{table}", to=to)


@pytest.mark.untraced
def test_another_version_goes_on_and_says_so(step: Step, begun: Path, tmp_path: Path) -> None:
    header = having(read_samples(begun), samples=(), in_situ=())
    provenance = msgspec.structs.replace(header.provenance or Provenance(), version="0.0.1")
    with SampleFile.create(
        tmp_path / "s.db", msgspec.structs.replace(header, provenance=provenance)
    ):
        pass

    found = _measure(step, tmp_path / "s.db")

    assert found.samples == read_samples(begun).samples
    sentence = f"begun with underclock 0.0.1, gone on with {underclock.__version__}"
    assert sentence in found.warnings


@pytest.fixture(scope="module")
def made(begun: Path) -> Plan:
    return plan(begun, Goal(max_slowdown=0.1), latency="free", raw=True)


class TestElsewhere:
    @pytest.mark.untraced
    def test_another_board_of_the_model_is_taken_with_a_warning(self, made: Plan) -> None:
        found = validate(made, gpu="sim:rtx3080ti#1", repeats=1, measuring=_BRIEF)

        (told,) = [words for words in found.warnings if "board" in words]
        assert f"made on board {made.gpu.uuid}" in told
        assert f"this is board {found.gpu.uuid}" in told
        assert "`underclock measure --near`" in told

    def test_another_model_is_refused(self, made: Plan) -> None:
        with pytest.raises(DataError, match="the plan is for RTX 3080 Ti, this is A40"):
            validate(made, gpu="sim:a40", repeats=1, measuring=_BRIEF)

    @pytest.mark.parametrize("core_mhz", [1801, 20_000])
    def test_clocks_that_the_gpu_does_not_list_are_refused_before_any_is_held(
        self, made: Plan, tmp_path: Path, core_mhz: int
    ) -> None:
        name = made.step.kernels[0].name
        choice = msgspec.structs.replace(made.kernels[name], clocks=Clocks(core_mhz=core_mhz))
        odd = msgspec.structs.replace(made, kernels={**made.kernels, name: choice})
        write_document(tmp_path / "plan.json", odd)

        with pytest.raises(DataError, match=rf"core {core_mhz} MHz.* does not list") as caught:
            validate(tmp_path / "plan.json", gpu="sim:rtx3080ti", repeats=1, measuring=_BRIEF)

        assert "nearest: core" in caught.value.hint


@pytest.mark.slow
class TestTimeLimit:
    def _adapt(self, step: Step, path: Path, time_limit_s: float, **more: object) -> SampleSet:
        campaign = Campaign(grid=Grid.ADAPTIVE, time_limit_s=time_limit_s)
        return _measure(step, path, **{"campaign": campaign, **more})  # type: ignore[arg-type]

    def test_one_that_warming_up_eats_is_refused_with_the_least_that_helps(
        self, step: Step, tmp_path: Path
    ) -> None:
        long = msgspec.structs.replace(_BRIEF, warm_s=60.0)
        with pytest.raises(UsageError, match="a time limit of 1 min is too short") as caught:
            self._adapt(step, tmp_path / "s.db", 60.0, measuring=long)

        assert "warming up takes 1 min at least" in str(caught.value)
        least_s = float(caught.value.hint.partition("--time-limit ")[2].partition("s is")[0])
        assert 60.0 < least_s < 90.0
        assert list(tmp_path.iterdir()) == []
        found = self._adapt(step, tmp_path / "s.db", least_s, measuring=long)
        assert found.samples

    def test_it_does_not_start_anew_when_a_campaign_goes_on(
        self, step: Step, tmp_path: Path
    ) -> None:
        path = tmp_path / "s.db"
        first = self._adapt(step, path, 25.0)
        with SampleFile.open(path, writable=False) as file:
            spent_s = file.gpu_s

        assert first.samples
        assert 25.0 <= spent_s < 26.0
        assert self._adapt(step, path, 25.0) == first
        more = self._adapt(step, path, 30.0)
        with SampleFile.open(path, writable=False) as file:
            assert 30.0 <= file.gpu_s < 31.0
        assert more.samples[: len(first.samples)] == first.samples
        assert len(more.samples + more.in_situ) > len(first.samples)
