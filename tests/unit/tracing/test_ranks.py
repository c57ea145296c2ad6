"""Steps and traces of several processes: whose file is whose, and which are no whole ones."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from traced_ranks import traces_of
from underclock.app import main
from underclock.core.job.schedules import Layout, pipeline
from underclock.errors import DataError, NotSupportedError, UsageError
from underclock.records import GpuInfo, Kernel, Launch, Pass, Step
from underclock.records.job import Job, Profile, ProfileRow, Waiting
from underclock.store import read_document, write_document
from underclock.tracing.job_files import (
    SUFFIX,
    ProcessRank,
    job_of_traces,
    leave_trace,
    told_of_ranks,
)

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


def _traces(*, gpu: bool = True) -> list[dict[str, Any]]:
    row = ProfileRow(time_s=0.01, energy_j=None)
    kinds = [f"stage {stage} {kind}" for stage in range(2) for kind in ("forward", "backward")]
    job = pipeline(
        "1f1b",
        Layout(stages=2, microbatches=4, transfer_s=(0.001,)),
        {kind: Profile(rows=(row,), auto=0) for kind in kinds},
        waiting=dict.fromkeys(range(2), (Waiting(power_w=70.0),)),
        gpu=GpuInfo(name="GPU"),
        workload="w",
    )
    return traces_of(job, gpu=gpu)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    first, second = _traces()
    (tmp_path / "rank-0.json").write_text(json.dumps(first))
    (tmp_path / "rank-1.json.gz").write_bytes(gzip.compress(json.dumps(second).encode()))
    (tmp_path / "step.json").write_text('{"kind": "step"}')  # not of the profiler
    return tmp_path


def test_a_folder_is_all_its_traces(folder: Path) -> None:
    job = job_of_traces([folder], workload="gpt", waiting_w=60.0)
    assert job == job_of_traces(
        [folder / "rank-1.json.gz", folder / "rank-0.json"], workload="gpt", waiting_w=60.0
    )
    assert len(job.ranks) == 2
    assert job.workload == "gpt"
    assert job.gpu.name == "H100"
    assert not job.has_energy
    assert [words.partition(":")[0] for words in job.warnings] == ["time only"]


def test_the_command_writes_the_job(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = folder / "out.job"
    main(["job", "traced", str(folder), "-o", str(output)])
    said = capsys.readouterr()
    assert "times only" in " ".join(said.out.split())
    assert "time only" in said.err
    assert read_document(output, Job).microbatches == 4


def test_what_a_rank_leaves_is_read(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("pass")
    for rank, trace in enumerate(_traces(gpu=False)):
        events = [e for e in trace["traceEvents"] if "ProfilerStep" not in e["name"]]
        path = tmp_path / f"step.rank{rank}{SUFFIX}"
        leave_trace(path, {**trace, "traceEvents": events}, source=source if rank else None)
    with pytest.raises(DataError, match="different jobs: the step's file is None and "):
        job_of_traces([tmp_path])
    for rank, trace in enumerate(_traces(gpu=False)):
        leave_trace(tmp_path / f"step.rank{rank}{SUFFIX}", trace, source=source)
    assert job_of_traces([tmp_path]).microbatches == 4


@pytest.mark.parametrize("cut", [40, 4000])
@pytest.mark.parametrize("name", ["rank-0.json", "rank-1.json.gz"])
def test_a_truncated_trace_is_a_sentence(folder: Path, name: str, cut: int) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:-cut] if cut > 40 else path.read_bytes()[:cut])
    with pytest.raises(DataError, match=f"{name} is no whole trace") as refused:
        job_of_traces([folder])
    assert "killed" in refused.value.hint


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"kind": "step"}', "no list of trace events"),
        ("[1, 2]", "is no trace: Expected `object`"),
        (
            '{"distributedInfo": {"rank": 0}, "traceEvents": [{"ph": "X", "cat": "cpu_op"}]}',
            "is no trace as PyTorch's profiler writes it",
        ),
    ],
)
def test_another_file_is_a_sentence(tmp_path: Path, body: str, words: str) -> None:
    path = tmp_path / "one.json"
    path.write_text(body)
    with pytest.raises(DataError, match=words):
        job_of_traces([path])


def test_nothing_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no trace in"):
        job_of_traces([tmp_path])
    with pytest.raises(DataError, match=r"cannot read .*none\.json"):
        job_of_traces([tmp_path / "none.json"])
