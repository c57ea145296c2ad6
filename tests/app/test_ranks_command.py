"""``underclock measure`` as torchrun starts it: the same words on every rank."""

from pathlib import Path

import pytest

from underclock.app import main
from underclock.records import Kernel, Launch, Pass, Step, StepSource
from underclock.store import read_samples, write_document
from underclock.testing import simulated_driver


def _step(*names: str, collective: bool) -> Step:
    shapes = "fp32[8] to fp32[8] among 2 ranks in group '0'"
    kernels = [
        Kernel(name=name, flops=1e12, bytes_moved=1e8, launch=Launch(function=name, identity=name))
        for name in names
    ]
    if collective:
        launch = Launch(function="n", operator="nccl::allreduce", shapes=shapes, identity="n")
        kernels.append(Kernel(name="allreduce", pass_=Pass.COMMUNICATION, launch=launch))
    source = StepSource(file="train.py", function="step", sha256="0" * 64)
    order = tuple(range(len(kernels)))
    return Step(name="train", kernels=tuple(kernels), order=order, source=source)


@pytest.fixture(autouse=True)
def _second_of_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)


def test_a_rank_measures_the_step_that_it_traced_itself() -> None:
    write_document(Path("step.rank0.json"), _step("first", collective=False))
    write_document(Path("step.rank1.json"), _step("second", collective=False))
    brief = "--core-mhz auto --window 0.1s,0.2s"
    main(f"measure step.json --gpu sim:rtx3080ti -o s.db {brief}".split())
    assert [kernel.name for kernel in read_samples(Path("s.db")).kernels] == ["second"]


def test_another_rank_than_the_first_follows_and_writes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_document(Path("step.json"), _step("mm", collective=True))
    with simulated_driver("a100", count=2), pytest.raises(SystemExit):
        main(["measure", "step.json", "--gpu", "nvml:0", "-o", "s.db"])
    said = capsys.readouterr().err
    assert "train.py:step: no such file" in said  # it went to run the step, as followers do
    assert "cannot measure" not in said
    assert not Path("s.db").exists()


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
