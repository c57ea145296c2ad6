"""Steps of several processes: whose file is whose, and whether they are the same step."""

from pathlib import Path

import pytest

from underclock.errors import NotSupportedError, UsageError
from underclock.records import Kernel, Launch, Pass, Step
from underclock.store import write_document
from underclock.tracing.job_files import ProcessRank, told_of_ranks

_FIRST, _SECOND = (ProcessRank(number=number, world=2, local=number) for number in range(2))


def _step(*operators: str, ranks: int = 2) -> Step:
    kernels = [
        Kernel(
            name=operator,
            pass_=Pass.COMMUNICATION if "nccl" in operator else Pass.FORWARD,
            launch=Launch(
                function=operator,
                operator=operator,
                shapes=f"fp32[8] to fp32[8] among {ranks} ranks in group '0'"
                if "nccl" in operator
                else "fp32[8x8]",
                identity=operator,
            ),
        )
        for operator in operators
    ]
    return Step(name="train", kernels=tuple(kernels), order=tuple(range(len(kernels))))


_DDP = _step("aten::mm", "nccl::allreduce")


def test_a_rank_writes_a_file_of_its_own() -> None:
    rank = ProcessRank.of({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"})
    assert rank == _SECOND
    assert rank is not None
    assert rank.file(Path("out/step.json")) == Path("out/step.rank1.json")


@pytest.mark.parametrize(
    "told",
    [
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "", "WORLD_SIZE": "2"},
        {"RANK": "1"},
    ],
)
def test_a_rank_that_makes_no_sense_is_a_sentence(told: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="name no rank") as refused:
        ProcessRank.of(told)
    assert "torchrun" in refused.value.hint


def test_another_step_on_a_rank_is_said(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    write_document(_SECOND.file(path), _step("aten::mm", "aten::add", "nccl::allreduce"))
    (said,) = told_of_ranks(_DDP, path, _FIRST)
    assert said.startswith("rank 1 runs another step than rank 0, according to step.rank1.json: ")
    assert said.endswith("with a new 'aten::add'")


@pytest.mark.parametrize("operator", ["c10d::send", "c10d::recv_", "nccl::coalesced"])
def test_stages_of_a_pipeline_run_different_steps(operator: str, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    write_document(_SECOND.file(path), _step("aten::mm", "aten::add", operator))
    assert told_of_ranks(_step("aten::mm", operator), path, _FIRST) == ()


def test_a_rank_reads_its_own_file_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    assert _SECOND.own(path) == path
    write_document(_SECOND.file(path), _DDP)
    assert _SECOND.own(path) == tmp_path / "step.rank1.json"
    assert _FIRST.own(path) == path


def test_a_step_with_collectives_has_a_rank_that_leads() -> None:
    first, second = (
        ProcessRank.needed(_DDP, {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank})
        for rank in "01"
    )
    assert first is not None
    assert second is not None
    assert (first.leads, second.leads) == (True, False)
    assert (first.gpu(2), second.gpu(2)) == (2, 3)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, "this process runs alone"),
        ({"RANK": "1", "WORLD_SIZE": "3"}, "this process is one of 3"),
    ],
)
def test_a_step_whose_ranks_do_not_run_is_not_run_over_and_over(
    told: dict[str, str], words: str
) -> None:
    with pytest.raises(NotSupportedError, match="collectives among 4 ranks") as refused:
        ProcessRank.needed(_step("aten::mm", "nccl::allreduce", ranks=4), told)
    assert words in str(refused.value)
    assert "torchrun" in refused.value.hint


@pytest.mark.parametrize(
    ("told", "there", "current", "own"),
    [
        ("1", 2, 0, 1),
        ("0", 2, 0, None),
        ("1", 1, 0, None),  # each rank is shown its own GPU only
        ("1", 4, 3, None),  # the step's file chose another
        ("one", 2, 0, None),
        (None, 2, 0, None),
    ],
)
def test_a_rank_takes_its_own_gpu_unless_one_was_chosen(
    told: str | None, there: int, current: int, own: int | None
) -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "4"}
    environment |= {} if told is None else {"LOCAL_RANK": told}
    rank = ProcessRank.of(environment)
    assert rank is not None
    assert rank.own_gpu(there=there, current=current) == own
