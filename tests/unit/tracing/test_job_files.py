"""Files of ranks' traces: whole ones, folders of them, broken ones."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from traced_ranks import traces_of
from underclock.app import main
from underclock.core.job.schedules import Layout, pipeline
from underclock.errors import DataError
from underclock.records import GpuInfo
from underclock.records.job import Job, Profile, ProfileRow, Waiting
from underclock.store import read_document
from underclock.tracing.job_files import SUFFIX, job_of_traces, leave_trace


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
