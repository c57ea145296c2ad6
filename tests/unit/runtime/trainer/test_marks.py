"""Marks in real training steps and pipelines of PyTorch's on the CPU."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from made_jobs import job, job_plan
from small_training import Model, Noted, Trains, batches, launches, train, training
from underclock.errors import UsageError
from underclock.learning.pieces import kind_of, read_places
from underclock.runtime.policy.parts import parts_of
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.marks import Marker
from underclock.runtime.trainer.page import Page
from underclock.runtime.trainer.sites import MarkSite, sites_of

if TYPE_CHECKING:
    from underclock.runtime.trainer.streams import MarkStream


class Marked:
    """A page, a stream and what marks."""

    def __init__(self, page: Page, sites: Sequence[MarkSite], stream: "MarkStream") -> None:
        self.page = page
        self.marker = Marker(
            [(p.event, p.path, p.occurrence, p.total) for p in sites],
            lambda: page,
            lambda _page, _optimizer: stream,
        )
        self.marker.attach(torch)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with closing(Page.create(tmp_path / "run.page", digest=bytes(32), marks=(0,))) as made:
        yield made


@pytest.fixture
def marked(page: Page) -> Iterator[Callable[..., Noted]]:
    made: list[Marked] = []

    def begin(sites: Sequence[MarkSite], stream: Noted | None = None) -> Noted:
        stream = Noted() if stream is None else stream
        made.append(Marked(page, sites, stream))
        return stream

    yield begin
    for each in made:
        each.marker.detach()


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


def all_places(passes: int = 1) -> tuple[MarkSite, ...]:
    modules, of = zip(*launches(passes=passes), strict=True)
    return sites_of(modules, of)


@pytest.mark.untraced
@pytest.mark.parametrize("passes", [1, 3])
def test_every_place_of_a_step_is_marked_in_turn(
    marked: Callable[..., Noted], model: Model, page: Page, passes: int
) -> None:
    sites = all_places(passes)
    stream = marked(sites)

    train(model, 4, passes=passes)

    every = list(range(1, len(sites) + 1))
    assert page.state == pages.MARKING
    assert page.sentence == f"{len(sites)} of {len(sites)} marks"
    assert stream.marks == [*every, *every, 1]
    assert stream.steps == [2] * len(every) + [3] * len(every) + [4]
    assert page.enqueued == 4
    assert {site.event for site in sites} >= {"step", "enter", "leave", "back", "backward end"}


@pytest.mark.untraced
@pytest.mark.parametrize("passes", [1, 2])
def test_without_a_plan_layers_are_marked_once_two_steps_were_seen(
    page: Page, model: Model, passes: int
) -> None:
    stream = Noted()
    marker = Marker([], lambda: page, lambda _page, _optimizer: stream, discovers=True)
    marker.attach(torch)
    train(model, 6, passes=passes)
    marker.detach()

    places = read_places(page.path)
    every = list(range(1, len(places) + 1))
    assert places[0] == ["step", "", 0, 1]
    assert {("enter", "blocks.*"), ("back", "blocks.*")} <= {kind_of(place) for place in places}
    assert {place[3] for place in places[1:]} == {passes}
    assert stream.marks == [*every * 3, 1]
    assert stream.steps[0] == 3
    hooks = [each._forward_hooks for each in model.modules()]  # noqa: SLF001
    assert not any(hooks)


def test_the_loss_is_the_same_to_the_last_bit(marked: Callable[..., Noted]) -> None:
    torch.manual_seed(0)
    plain = train(Model(), 8)
    stream = marked(all_places())
    torch.manual_seed(0)

    assert train(Model(), 8) == plain
    assert stream.marks


def test_what_is_done_again_in_the_backward_pass_marks_nothing(
    marked: Callable[..., Noted], page: Page
) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for each in (self.inner.first, *self.inner.blocks, self.inner.last):
                x = torch.utils.checkpoint.checkpoint(each, x, use_reentrant=False)
            return x

    sites = (
        MarkSite(launch=0, event="step"),
        MarkSite(launch=1, event="enter", path="inner.blocks.0.up"),
        MarkSite(launch=2, event="enter", path="inner.last"),
        MarkSite(launch=3, event="back", path="inner.last"),
        MarkSite(launch=4, event="back", path="inner.blocks.0"),
    )
    stream = marked(sites)

    train(Checkpointed(), 3)

    assert page.sentence == "5 of 5 marks"
    assert stream.marks == [1, 2, 3, 4, 5, 1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # PyTorch's own, while it compiles
@pytest.mark.parametrize("in_place", [True, False])
def test_the_ends_of_compiled_regions_are_marked(
    marked: Callable[..., Noted], model: Model, page: Page, *, in_place: bool
) -> None:
    if in_place:
        model.blocks[1].compile(backend="eager")
    else:
        model.blocks[1] = torch.compile(model.blocks[1], backend="eager")  # type: ignore[assignment]
    sites = (
        MarkSite(launch=0, event="step"),
        MarkSite(launch=1, event="enter", path="blocks.1"),
        MarkSite(launch=2, event="leave", path="blocks.1"),
        MarkSite(launch=3, event="back", path="blocks.1"),
    )
    stream = marked(sites)

    train(model, 3)

    assert page.sentence == "4 of 4 marks"
    assert stream.marks == [1, 2, 3, 4, 1]


def test_marks_that_are_elsewhere_are_left_out(
    marked: Callable[..., Noted], model: Model, page: Page
) -> None:
    sites = list(all_places())
    wrong = MarkSite(launch=1, event="enter", path="last")  # long after what follows it here
    absent = MarkSite(launch=2, event="enter", path="blocks.7")
    twice = MarkSite(launch=3, event="enter", path="first", total=2)
    stream = marked([sites[0], wrong, absent, twice, *sites[1:]])

    train(model, 3)

    assert page.state == pages.MARKING
    assert stream.marks == [1, *range(5, len(sites) + 4), 1]


def test_another_models_step_is_refused_and_training_goes_on(
    marked: Callable[..., Noted], model: Model, page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = marked(
        [MarkSite(launch=0, event="step"), MarkSite(launch=1, event="enter", path="layers.0")]
    )

    assert len(train(model, 6)) == 6

    assert page.state == pages.REFUSED
    assert "1 of its 2 marks are where the plan says; trace the step again" in page.sentence
    assert "training goes on without marks" in capsys.readouterr().err
    assert not stream.marks
    assert not model.first._forward_hooks  # noqa: SLF001 - there is no other way to ask


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_of_a_data_loader_mark_nothing(
    marked: Callable[..., Noted], model: Model, page: Page, start: str
) -> None:
    stream = marked(all_places(), HostNoted(page))
    loader = DataLoader(Trains(), batch_size=1, num_workers=1, multiprocessing_context=start)
    steps = training(model, 4)
    next(steps), next(steps), next(steps)
    before = list(stream.marks)
    page.write(77)

    assert [int(each) for each in loader] == [4]

    assert page.reached()[0] == 77
    assert page.pid == os.getpid()
    assert stream.marks == before
    steps.close()


class HostNoted(Noted):
    """Writes into the page as well."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        self._page = page

    def mark(self, word: int) -> None:
        super().mark(word)
        self._page.write(word)


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


@pytest.fixture
def attached(tmp_path: Any) -> Iterator[tuple[Noted, Page]]:
    """Mark a job's only rank."""
    (part,) = parts_of(job_plan(_ALONE))
    page = Page.create(tmp_path / "page", digest=bytes(32), marks=part.marks)
    places = [(site.event, site.path, site.occurrence, site.total) for site in part.sites]
    stream = Noted()
    marker = Marker(places, lambda: page, lambda *_: stream, "1f1b")
    marker.attach(torch)
    yield stream, page
    marker.detach()
    page.close()


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_passes_of_a_pipeline_are_marked_in_the_plans_order(
    attached: tuple[Noted, Page],
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
    name: str, microbatches: int, attached: tuple[Noted, Page], capsys: pytest.CaptureFixture[str]
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
    *, nvtx: bool, attached: tuple[Noted, Page], monkeypatch: pytest.MonkeyPatch
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


def test_evaluation_in_between_marks_nothing(marked: Callable[..., Noted], model: Model) -> None:
    sites = all_places()
    stream = marked(sites)
    steps = training(model, 4)
    for _ in range(4):
        next(steps)
        model.eval()
        with torch.no_grad():
            model(next(batches(2))[0])
        model.train()

    every = list(range(1, len(sites) + 1))
    assert stream.marks == [*every, *every, 1]


def test_a_stream_that_fails_ends_the_marks_and_not_the_training(
    marked: Callable[..., Noted], model: Model, page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(Noted):
        def mark(self, word: int) -> None:
            raise OSError(f"no mark {pages.mark_of(word)}")

    stream = marked(all_places(), Broken())

    assert len(train(model, 5)) == 5

    assert (page.state, page.sentence) == (pages.REFUSED, "no mark 1")
    assert stream.closed
    assert capsys.readouterr().err.count("without marks") == 1


def test_a_second_optimiser_begins_no_steps(marked: Callable[..., Noted], model: Model) -> None:
    stream = marked([MarkSite(launch=0, event="step")])
    other = nn.Linear(1, 1)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in training(model, 4):
        second.step()

    assert stream.marks == [1, 1, 1]


def test_a_page_that_another_process_has_is_left_alone(
    model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    def taken() -> Page:
        raise UsageError("another process marks the steps of GPU 0 already")

    stream = Noted()
    marker = Marker([("step", "", 0, 1)], taken, lambda _page, _optimizer: stream)
    marker.attach(torch)

    train(model, 3)

    assert not stream.marks
    assert "without marks: another process marks" in capsys.readouterr().err


def test_nothing_is_set_up_while_a_graph_is_captured(
    marked: Callable[..., Noted], model: Model, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = all_places()
    stream = marked(sites)
    steps = training(model, 6)
    with monkeypatch.context() as capturing:
        capturing.setattr(torch.cuda, "is_initialized", lambda: True)
        capturing.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        next(steps), next(steps), next(steps)
        assert (page.state, stream.marks) == (pages.LEARNING, [])

    next(steps), next(steps)

    assert page.state == pages.MARKING
    steps.close()
