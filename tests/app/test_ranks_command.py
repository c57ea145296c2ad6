"""Ranks of one job: the first measures, the others follow it, each on a GPU of its own."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from underclock.app import main
from underclock.app.backends import open_measurer
from underclock.app.measuring import follow
from underclock.errors import MeasurementError, UsageError
from underclock.hw import lockstep
from underclock.hw.lockstep import RankPace
from underclock.records import Clocks, Kernel, Launch, Mix, Pass, Step, StepSource
from underclock.records.work import Traced
from underclock.store import read_samples, write_document
from underclock.testing import simulated_driver
from underclock.tracing import captured


def _kernel(operator: str) -> Kernel:
    collective = operator.startswith("nccl")
    shapes = "fp32[8] to fp32[8] among 2 ranks in group '0'" if collective else "fp32[8x8]"
    launch = Launch(function=operator, operator=operator, shapes=shapes, identity=operator)
    pass_ = Pass.COMMUNICATION if collective else Pass.FORWARD
    return Kernel(name=operator, flops=1e12, bytes_moved=1e8, pass_=pass_, launch=launch)


def _step(*operators: str) -> Step:
    source = StepSource(file="train.py", function="step", sha256="0" * 64)
    kernels = tuple(map(_kernel, operators))
    return Step(name="train", kernels=kernels, order=tuple(range(len(kernels))), source=source)


DDP, ALONE = _step("aten::mm", "nccl::allreduce"), _step("aten::mm")


@pytest.fixture(autouse=True)
def _second_of_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)


def test_a_rank_measures_the_step_that_it_traced_itself() -> None:
    write_document(Path("step.rank0.json"), _step("first"))
    write_document(Path("step.rank1.json"), _step("second"))
    brief = "--core-mhz auto --window 0.1s,0.2s"
    main(f"measure step.json --gpu sim:rtx3080ti -o s.db {brief}".split())
    assert [kernel.name for kernel in read_samples(Path("s.db")).kernels] == ["second"]


def test_another_rank_than_the_first_follows_and_writes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_document(Path("step.json"), DDP)
    with simulated_driver("a100", count=2), pytest.raises(SystemExit):
        main(["measure", "step.json", "--gpu", "nvml:0", "-o", "s.db"])
    said = capsys.readouterr().err
    assert "train.py:step: no such file" in said  # it went to run the step, as followers do
    assert "cannot measure" not in said
    assert not Path("s.db").exists()


def test_a_rank_without_the_others_is_told_how_to_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_document(Path("step.json"), DDP)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    with simulated_driver("a100"), pytest.raises(SystemExit):
        main(["measure", "step.json", "--gpu", "nvml:0", "-o", "s.db"])
    said = " ".join(capsys.readouterr().err.split())
    assert "train has collectives among 2 ranks" in said
    assert "torchrun --nproc-per-node" in said


@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_first_rank_tells_what_it_traced_and_the_others_write_their_files(
    rank: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    main(["trace", "gpt3-125m", "--size", "layers=1", "-o", "step.json"])
    assert Path(f"step.rank{rank}.json").is_file()
    said = capsys.readouterr()
    assert ("launches per step" in said.out) == (rank == "0")
    assert rank == "0" or not said.out + said.err


torch: Any = pytest.importorskip("torch")


@dataclass
class FakeLauncher:
    """As much of a launcher as the other ranks notice."""

    traced: Traced
    ran: list[tuple[str, ...]] = field(default_factory=list)
    pace: RankPace = field(default_factory=RankPace)
    locks: list[object] = field(default_factory=list)

    def lock(self) -> object:
        return None

    @contextlib.contextmanager
    def loop(self, kernels: Sequence[Kernel], mix: Mix | None = None) -> Iterator[Any]:
        names = tuple(kernel.name for kernel in kernels)
        self.pace.begin(names, mix)
        assert self.pace.agreed(1.0) == 1.0
        assert self.pace.go()
        self.ran.append(names)
        self.locks.append(self.lock())
        yield SimpleNamespace(run_out=lambda: self.pace.go())  # noqa: PLW0108 - the pace may change
        self.pace.end()

    def notes(self) -> tuple[str, ...]:
        return ()


@pytest.fixture
def launchers(monkeypatch: pytest.MonkeyPatch) -> list[FakeLauncher]:
    """Return a list of what will run steps, PyTorch's GPU left away."""
    made: list[FakeLauncher] = []

    @contextlib.contextmanager
    def measured_step(run: Callable[[], Step], *, name: str) -> Iterator[FakeLauncher]:
        assert name == "train"
        made.append(FakeLauncher(Traced(step=run(), groups=())))
        yield made[-1]

    monkeypatch.setattr(captured, "measured_step", measured_step)
    monkeypatch.setattr(captured, "check_device", lambda _uuid: None)
    return made


Be = Callable[[int], None]


@pytest.fixture
def be(monkeypatch: pytest.MonkeyPatch) -> Iterator[Be]:
    """Make this process a job; return what makes it one rank of two, or another, in turn."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)

    def rank(number: int) -> None:
        for name, value in (("RANK", number), ("WORLD_SIZE", 2), ("LOCAL_RANK", number)):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(lockstep, "_LINES", itertools.count())  # each process has its own

    yield rank
    distributed.destroy_process_group()


def test_a_rank_runs_what_the_first_one_measures_at_the_clocks_it_holds(
    launchers: list[FakeLauncher], be: Be, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNDERCLOCK_READ_ONLY", raising=False)
    low = Clocks(core_mhz=1200)
    with simulated_driver("a100", count=2) as machine:
        monkeypatch.setattr(
            FakeLauncher, "lock", lambda _: machine.gpus[len(launchers) - 1].core_lock
        )
        be(0)
        with open_measurer("nvml:0", step=DDP, run=lambda: DDP) as measurer:
            with measurer.hold(low), launchers[0].loop(DDP.kernels):
                pass
            with launchers[0].loop(DDP.kernels[:1]):
                pass
        be(1)
        follow(DDP, gpu="nvml:0", run=lambda: DDP)

        first, second = launchers
        assert first.ran == second.ran == [("aten::mm", "nccl::allreduce"), ("aten::mm",)]
        assert first.locks == second.locks == [(1200, 1200), None]
        assert [gpu.core_lock for gpu in machine.gpus] == [None, None]


def test_a_rank_of_another_step_ends_with_a_sentence(launchers: list[FakeLauncher], be: Be) -> None:
    other = _step("aten::addmm", "nccl::allreduce")
    with simulated_driver("a100", count=2):
        be(0)
        with open_measurer("nvml:0", step=DDP, run=lambda: DDP):
            pass
        be(1)
        with pytest.raises(MeasurementError, match="first has 'aten::mm' where this has 'aten::ad"):
            follow(other, gpu="nvml:0", run=lambda: other)
    assert launchers[1].ran == []


def test_only_the_first_rank_measures_and_only_others_follow(be: Be) -> None:
    be(1)
    assert not follow(ALONE, gpu="nvml:0")
    assert not follow(DDP, gpu="sim:a100")
    with (
        simulated_driver("a100"),
        pytest.raises(UsageError, match="rank 1 cannot measure: the first of 2 ranks does"),
        open_measurer("nvml:0", step=DDP),
    ):
        pass
    be(0)
    assert not follow(DDP, gpu="nvml:0")
    assert not follow(ALONE, gpu="nvml:0")
