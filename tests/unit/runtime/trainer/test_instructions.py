"""Instructions of a job's rank, seen in pipelines of PyTorch's and in ranges that people put."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from made_jobs import job, job_plan
from underclock.runtime.policy.parts import parts_of
from underclock.runtime.trainer import instructions
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.marks import Marker
from underclock.runtime.trainer.page import Page, mark_of

_MICROBATCHES = 2
_STAGE = "torch.distributed.pipelining.stage"
_ALONE = job(stages=1, microbatches=_MICROBATCHES)


@pytest.fixture
def alone() -> Iterator[None]:
    """Make this process a pipeline of one stage."""
    distributed: Any = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def _train(steps: int, name: str = "Schedule1F1B", *, microbatches: int = _MICROBATCHES) -> None:
    from torch.distributed import pipelining

    model = nn.Linear(8, 8)
    stage = pipelining.PipelineStage(model, 0, 1, torch.device("cpu"))
    schedule = getattr(pipelining, name)(stage, microbatches, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    batch = torch.ones(4 * microbatches, 8)
    for _ in range(steps):
        schedule.step(batch, target=batch)
        optimizer.step()
        optimizer.zero_grad()


class _Noted:
    """A stream that notes its marks."""

    def __init__(self) -> None:
        self.marks: list[int] = []

    def mark(self, word: int) -> None:
        self.marks.append(mark_of(word))

    def count(self, steps: int) -> None:
        del steps

    def close(self) -> None:
        """Hold nothing."""


@pytest.fixture
def attached(tmp_path: Any) -> Iterator[tuple[_Noted, Page]]:
    """Mark a job's only rank."""
    (part,) = parts_of(job_plan(_ALONE))
    page = Page.create(tmp_path / "page", digest=bytes(32), marks=part.marks)
    places = [(site.event, site.path, site.occurrence, site.total) for site in part.sites]
    stream = _Noted()
    marker = Marker(places, lambda: page, lambda *_: stream, "1f1b")
    marker.attach(torch)
    yield stream, page
    marker.detach()
    page.close()


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_passes_of_a_pipeline_are_marked_in_the_plans_order(
    attached: tuple[_Noted, Page],
) -> None:
    stream, page = attached
    _train(4)
    marks = [*range(1, 2 + 4 * _MICROBATCHES)]
    assert stream.marks == [1, *marks[1:], 1, *marks[1:], 1]  # from the end of the second step on
    assert (page.state, page.sentence) == (pages.MARKING, "9 of 9 marks")


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("name", "microbatches"), [("ScheduleGPipe", _MICROBATCHES), ("Schedule1F1B", 4)]
)
def test_a_plan_for_another_schedule_is_refused_and_named(
    name: str, microbatches: int, attached: tuple[_Noted, Page], capsys: pytest.CaptureFixture[str]
) -> None:
    stream, page = attached
    _train(6, name, microbatches=microbatches)
    assert not stream.marks
    assert page.state == pages.REFUSED
    assert f"the plan is for another schedule: 1f1b, and this is {name}" in page.sentence
    assert "training goes on without marks" in capsys.readouterr().err


def _ranges(steps: int, names: Sequence[str], *, nvtx: bool) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    stack: Any = torch.cuda.nvtx
    for _ in range(steps):
        for name in names:
            if nvtx:
                stack.range_push(name)
                stack.range_pop()
            else:
                with torch.profiler.record_function(name):
                    pass
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("nvtx", [False, True])
def test_ranges_are_taken_where_there_is_no_pipeline(
    *, nvtx: bool, attached: tuple[_Noted, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, _STAGE, raising=False)
    if nvtx:  # a build without CUDA has none
        for name in ("range_push", "range_pop"):
            monkeypatch.setattr(torch.cuda.nvtx, name, lambda *_: 0)
    names = ["forward mb=0", "data", "fwd microbatch 1", "Backward mb 0", "bwd mb=1 stage=0"]
    order = [names[0], names[3], names[1], names[2], names[4]]  # as 1F1B has them
    stream, page = attached
    _ranges(4, order, nvtx=nvtx)
    assert page.state == pages.MARKING, page.sentence
    assert stream.marks[:10] == [*range(1, 10), 1]


def test_hooks_are_taken_away_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed.pipelining

    base = sys.modules[_STAGE]._PipelineStageBase  # noqa: SLF001
    before = dict(base.__dict__)
    told: list[tuple[str, str]] = []
    first, second = (torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1) for _ in range(2))
    undo = instructions.watch(torch, lambda: first, lambda *of: told.append(of))
    assert base.__dict__["forward_one_chunk"] is not before["forward_one_chunk"]
    monkeypatch.setattr(base, "backward_one_chunk", other := object())  # somebody else came later
    for optimizer in (first, second):  # a rank has one for each of its chunks
        optimizer.step()
    assert told == [("begins", "optimizer")]
    for each in undo:
        each()
    first.step()
    assert len(told) == 1
    assert base.__dict__["forward_one_chunk"] is before["forward_one_chunk"]
    assert base.__dict__["backward_one_chunk"] is other
    monkeypatch.delitem(sys.modules, "torch.distributed.pipelining.schedules", raising=False)
    assert instructions.schedule_of() == "this is none of PyTorch's"
