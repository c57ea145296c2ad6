"""A real GPU as a measurer: what is refused before PyTorch is asked, and what a reader is told."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from underclock.app.backends import open_measurer
from underclock.app.measuring import measure
from underclock.campaign.grid import Campaign, survey
from underclock.errors import MeasurementError, NotSupportedError, UsageError
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.records import AUTO, Kernel, Launch, Step, StepSource
from underclock.records.work import Traced
from underclock.store import read_samples
from underclock.testing import simulated_driver
from underclock.tracing import captured
from underclock.tracing.held import (
    algorithm_notes,
    held_launcher,
    neighbour_notes,
    step_now,
)
from underclock.workloads import workload

SOURCE = StepSource(file="train.py", function="step", sha256="0" * 64)
OURS = os.getpid()
THEIRS, OTHERS = OURS + 1, OURS + 2


def kernel(name: str, count: int = 1, grid: int = 1) -> Kernel:
    launch = Launch(function=f"void {name}()", grid=(grid, 1, 1), identity=f"{name}-{grid}")
    return Kernel(name=name, count=count, launch=launch)


def conv(function: str) -> Kernel:
    launch = Launch(function=f"void {function}()", operator="aten::conv", identity=function)
    return Kernel(name=function, launch=launch)


def step(*kernels: Kernel, order: tuple[int, ...] = (), **more: object) -> Step:
    plain = tuple(place for place, each in enumerate(kernels) for _ in range(each.count))
    return Step(name="train", kernels=kernels, order=order or plain, **more)  # type: ignore[arg-type]


TRACED = step(kernel("gemm", 2), kernel("copy"), source=SOURCE)


class PartitionedGpu(NvmlGpu):
    """A GPU that somebody split."""

    def is_partitioned(self) -> bool:
        return True


class TestNeighbours:
    def test_each_other_process_is_named_with_its_share_where_known(self) -> None:
        first, second = neighbour_notes({OTHERS: None, OURS: 0.5, THEIRS: 0.25})

        assert first.startswith(f"process {THEIRS} also computes on this GPU and took 25% of it")
        assert second.startswith(f"process {OTHERS} also computes on this GPU: ")
        assert all("energy is counted with the step's" in note for note in (first, second))


class TestStepNow:
    def test_the_same_step_under_another_name_is_the_traced_one(self) -> None:
        other = msgspec.structs.replace(TRACED, name="other", source=None)
        assert step_now(TRACED, other, anew=False) == (TRACED, ())
        assert algorithm_notes(()) == ()

    @pytest.mark.parametrize(
        ("found", "words"),
        [
            (step(kernel("gemm", 2)), "runs without 'copy'"),
            (step(*TRACED.kernels, kernel("new")), "runs with a new 'new'"),
            (step(*TRACED.kernels, order=(0, 1, 0)), "at other places or numbers 'gemm'"),
        ],
    )
    def test_another_step_is_refused_and_the_difference_named(
        self, found: Step, words: str
    ) -> None:
        for anew in (False, True):
            with pytest.raises(MeasurementError, match="no longer the step that was") as caught:
                step_now(TRACED, found, anew=anew)

            assert words in str(caught.value)
            assert "trace it again" in caught.value.hint

    def test_another_function_of_the_same_operator_is_said_and_gone_on_with(self) -> None:
        for anew in (False, True):
            now, changes = step_now(step(conv("fprop")), step(conv("winograd")), anew=anew)

            assert [each.name for each in now.kernels] == ["fprop"]
            (note,) = algorithm_notes(changes)
            assert "'fprop' runs winograd instead of fprop; what is measured is the step as" in note

    def test_other_numbers_of_launches_will_do_only_where_all_is_measured_anew(self) -> None:
        traced, found = step(conv("winograd")), step(conv("to_nhwc"), conv("fprop"))

        now, _ = step_now(traced, found, anew=True)
        assert [each.name for each in now.kernels] == ["to_nhwc", "fprop"]
        with pytest.raises(MeasurementError, match="launches other kernels than were") as caught:
            step_now(traced, found, anew=False)

        assert "measure and plan again" in caught.value.hint


@dataclass
class FakeLauncher:
    """As much of a launcher as is asked before anything runs."""

    traced: Traced

    def notes(self) -> tuple[str, ...]:
        return ()


class TestCapturedNow:
    @pytest.fixture
    def found(self, monkeypatch: pytest.MonkeyPatch) -> list[Step]:
        """Return a list for what a capture will find, PyTorch and its GPU left away."""
        found: list[Step] = []

        @contextlib.contextmanager
        def measured_step(run: object, *, name: str) -> Iterator[FakeLauncher]:
            assert (run(), name) == ("ran", "train")  # type: ignore[operator]
            yield FakeLauncher(Traced(step=found[0], groups=()))

        monkeypatch.setattr(captured, "measured_step", measured_step)
        monkeypatch.setattr(captured, "check_device", lambda _uuid: None)
        return found

    def test_the_measurer_says_what_runs_now_and_the_launcher_knows_it_by_its_names(
        self, found: list[Step]
    ) -> None:
        found.append(step(conv("to_nhwc"), conv("fprop")))
        traced = step(conv("to_nhwc"), conv("winograd"), source=SOURCE)

        with (
            simulated_driver("rtx3080ti"),
            open_measurer("nvml:0", step=traced, run=lambda: "ran") as measurer,
        ):
            assert measurer.step is not None
            assert [each.name for each in measurer.step.kernels] == ["to_nhwc", "winograd"]
            assert measurer.step.kernels[1].launch == found[0].kernels[1].launch
            assert measurer.step.source == SOURCE
            (note,) = [each for each in measurer.notes() if "algorithms" in each]
            assert "'winograd' runs fprop instead of winograd" in note
            header, _ = survey(measurer, measurer.step, Campaign())
            assert header.kernels == measurer.step.kernels
            assert note in header.warnings


class TestRefusedBeforePyTorch:
    @pytest.mark.parametrize("wanted", [None, workload("gpt3-125m", {"layers": 1})])
    def test_a_step_that_was_never_traced(self, wanted: Step | None, tmp_path: Path) -> None:
        with (
            simulated_driver("rtx3080ti"),
            pytest.raises(UsageError, match="a step that was traced on one") as caught,
        ):
            measure(wanted, gpu="nvml:0", to=tmp_path / "s.db")

        assert "underclock trace" in caught.value.hint
        assert list(tmp_path.iterdir()) == []

    def test_a_gpu_split_into_instances_whose_clocks_are_one(self) -> None:
        with (
            simulated_driver("a100"),
            nvml_session(),
            pytest.raises(NotSupportedError, match="MIG"),
            held_launcher(PartitionedGpu(), TRACED),
        ):
            pass


def test_what_the_bench_and_the_trace_have_to_say_lands_in_the_profile(tmp_path: Path) -> None:
    table = tmp_path / "sweep.csv"
    table.write_text("gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w\nG,a,,,1,100,100\n")
    told = Step(
        name="train",
        kernels=(Kernel(name="a"),),
        order=(0,),
        source=SOURCE,
        warnings=("one launch was not named",),
    )

    for _ in range(2):  # going on repeats nothing
        sample_set = measure(
            told,
            gpu=f"replay:{table}",
            to=tmp_path / "s.db",
            campaign=Campaign(core_mhz=(None,), mem_mhz=(None,)),
        )

        assert sample_set.warnings.count("one launch was not named") == 1
        assert sample_set.step.source == SOURCE
        assert [each.asked for each in sample_set.samples] == [AUTO]
        assert read_samples(tmp_path / "s.db") == sample_set
