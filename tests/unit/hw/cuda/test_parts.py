"""A step split into parts wherever the host waits, on PyTorch's own dispatcher, graphs faked."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from underclock.hw.cuda.parts import Parts, splitting  # noqa: E402


@dataclass
class Tape:
    """What graphs were told to do, in order, and what ran meanwhile."""

    said: list[str] = field(default_factory=list)
    fails: bool = False

    def graph(self, *, keep_graph: bool) -> "FakeGraph":
        assert keep_graph
        return FakeGraph(self)


@dataclass
class FakeGraph:
    """A CUDA graph that captures nothing: what would be captured runs."""

    tape: Tape

    def capture_begin(self, *, pool: str, capture_error_mode: str) -> None:
        assert (pool, capture_error_mode) == ("pool", "relaxed")
        self.tape.said.append("begin")

    def capture_end(self) -> None:
        self.tape.said.append("end")
        if self.tape.fails:
            raise RuntimeError("operation failed due to a previous error during capture")

    def instantiate(self) -> None:
        pass

    def replay(self) -> None:
        self.tape.said.append("replay")

    def reset(self) -> None:
        self.tape.said.append("reset")


class Stream:
    """A stream that is always done."""

    def synchronize(self) -> None:
        pass


class Event(Stream):
    """An event that is always over."""

    def elapsed_time(self, _other: "Event") -> float:
        return 1.0


def fake_torch(tape: Tape, **cuda: object) -> Any:
    """Return the PyTorch there is, with graphs of the tape's instead of the GPU's."""
    functions: dict[str, object] = {
        "CUDAGraph": tape.graph,
        "graph_pool_handle": lambda: "pool",
        "synchronize": lambda: tape.said.append("wait"),
        "empty_cache": lambda: tape.said.append("empty"),
        "Stream": Stream,
        "Event": Event,
    }

    def empty(*size: Any, pin_memory: bool = False, **options: Any) -> Any:
        assert pin_memory
        return torch.empty(*size, **options)

    return SimpleNamespace(
        cuda=SimpleNamespace(**functions | cuda),
        library=torch.library,
        optim=torch.optim,
        empty=empty,
        tensor=torch.tensor,
        is_tensor=torch.is_tensor,
        float64=torch.float64,
    )


@pytest.fixture
def tape() -> Iterator[Tape]:
    yield Tape()
    gc.collect()


def run(tape: Tape, step: Callable[[Any], object]) -> tuple[Parts, object]:
    fake = fake_torch(tape)
    parts = Parts(fake)
    with splitting(fake, parts, backend="CPU"):
        parts.begin()
        result = step(fake)
        parts.end()
    return parts, result


def test_a_number_that_is_read_ends_a_part_and_is_the_true_one(tape: Tape) -> None:
    x = torch.arange(5.0)
    parts, result = run(tape, lambda _fake: (x * 2).sum().item())
    assert result == 20.0
    assert tape.said == ["begin", "end", "replay", "begin", "end", "replay"]
    assert parts.between == {"aten::item": 1}


def test_a_shape_that_depends_on_data_ends_a_part_wherever_it_hides(tape: Tape) -> None:
    x = torch.arange(6.0, requires_grad=True)

    def step(_fake: object) -> object:
        x[x > 2].sum().backward()  # the index asks for nonzero, forward and backward
        return x.grad

    parts, gradient = run(tape, step)
    assert torch.equal(gradient, torch.tensor([0.0, 0, 0, 1, 1, 1]))
    assert set(parts.between) == {"aten::nonzero"}
    assert len(parts.graphs) == 1 + parts.between["aten::nonzero"]


def test_numbers_that_sizes_are_made_of_are_remembered(tape: Tape) -> None:
    x = torch.arange(6.0)

    def step(_fake: object) -> None:
        x[x > 2].sum().item()  # 3 of them; a number with a fraction is no size
        torch.tensor([9, 7, 9, 8]).unique()  # 3 as well
        torch.tensor(41).item()
        torch.tensor(-5).item()
        torch.tensor(5) == 5  # noqa: B015 - nobody reads it

    parts, _ = run(tape, step)
    assert parts.sizes == {3, 41}
    assert Parts(fake_torch(tape)).sizes == set()


def test_what_runs_between_two_parts_does_not_end_one(tape: Tape) -> None:
    parts, result = run(tape, lambda _fake: torch.tensor([2, 1, 2]).unique(return_counts=True))
    assert [part.tolist() for part in result] == [[1, 2], [1, 2]]  # type: ignore[attr-defined]
    assert parts.between == {"aten::_unique2": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wait", "said"),
    [
        (lambda fake: fake.cuda.synchronize(), "wait"),
        (lambda fake: fake.cuda.empty_cache(), "empty"),
        (lambda fake: fake.cuda.Stream().synchronize(), None),
        (lambda fake: fake.cuda.Event().elapsed_time(fake.cuda.Event()), None),
    ],
)
def test_waiting_for_the_gpu_ends_a_part(
    tape: Tape, wait: Callable[[Any], object], said: str | None
) -> None:
    parts, _ = run(tape, wait)
    first, second = ["begin", "end", "replay"], ["begin", "end", "replay"]
    assert tape.said == [*first, *([said] if said else []), *second]
    assert sum(parts.between.values()) == 1


def test_copies_of_numbers_and_on_one_device_stay_in_the_part(tape: Tape) -> None:
    x = torch.zeros(3)
    # A tensor of the host is written by one of the host: nobody waits for a GPU.
    fake = fake_torch(tape)
    parts = Parts(fake)
    with splitting(fake, parts, backend="CPU"):
        x.copy_(torch.ones(3))
        x[1:].copy_(torch.tensor(2))
        x[2] = 3.5
    assert x.tolist() == [1.0, 2.0, 3.5]


def test_pytorch_is_as_before_however_the_block_ends(tape: Tape) -> None:
    check = "_accelerator_graph_capture_health_check"
    before = torch.optim.Optimizer.__dict__.get(check)
    synchronize = vars(Event).get("synchronize")
    with pytest.raises(KeyboardInterrupt):
        run(tape, _interrupted)
    said = len(tape.said)
    assert torch.ones(1).item() == 1.0
    assert len(tape.said) == said
    assert torch.optim.Optimizer.__dict__.get(check) is before
    assert vars(Event).get("synchronize") is synchronize


def _interrupted(_fake: object) -> None:
    raise KeyboardInterrupt


def test_an_optimiser_s_capture_check_is_lifted_while_capturing(tape: Tape) -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.AdamW([weight])
    names = [name for name in dir(optimizer) if name.endswith("_graph_capture_health_check")]
    assert names  # or PyTorch calls it something else now

    def checks(_fake: object) -> list[object]:
        return [getattr(optimizer, name)() for name in names]

    assert run(tape, checks)[1] == [None] * len(names)


def test_a_capture_that_failed_is_given_up(tape: Tape) -> None:
    parts = Parts(fake_torch(tape))
    parts.begin()
    tape.fails = True
    parts.abandon()
    assert tape.said == ["begin", "end", "reset"]
    assert not parts.graphs
    parts.abandon()  # twice is no harm
    assert tape.said == ["begin", "end", "reset"]


def test_an_error_between_two_parts_begins_no_other(tape: Tape) -> None:
    parts = Parts(fake_torch(tape))
    parts.begin()
    with pytest.raises(ValueError, match="no"), parts.paused("it"):
        raise ValueError("no")
    assert tape.said == ["begin", "end", "replay"]
    assert not parts.capturing


def test_all_parts_are_replayed_in_turn_and_given_back(tape: Tape) -> None:
    parts, _ = run(tape, lambda _fake: torch.ones(1).item())
    tape.said.clear()
    parts.replay()
    parts.release()
    assert tape.said == ["replay", "replay", "reset", "reset"]
