"""A step split into parts wherever the host waits, on PyTorch's own dispatcher, graphs faked."""

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from underclock.hw.cuda.capture import (  # noqa: E402
    Parts,
    _copying,
    splitting,
    waiting_operators,
)


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
    """An event that is over as soon as it was recorded."""

    def __init__(self, *, enable_timing: bool = True) -> None:
        self.timing = enable_timing
        self.recorded = 0

    def record(self, stream: object = None) -> None:
        assert stream in {None, "side"}
        self.recorded += 1

    def elapsed_time(self, _other: "Event") -> float:
        if not self.timing:
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not self.recorded:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return 1.0


def fake_torch(tape: Tape, **cuda: object) -> Any:
    """Return the PyTorch there is, with graphs of the tape's instead of the GPU's."""
    functions: dict[str, object] = {
        "CUDAGraph": tape.graph,
        "graph_pool_handle": lambda: "pool",
        "current_device": lambda: 0,
        # The script names no device; what splits the step does.
        "synchronize": lambda device=None: tape.said.append("wait") if device is None else None,
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


def _recorded(fake: Any) -> Any:
    event = fake.cuda.Event()
    event.recorded = 1
    return event


EIGEN = [("aten::linalg_eigh", "aten::_linalg_eigh")]


def test_an_operator_that_no_graph_holds_runs_between_parts(tape: Tape) -> None:
    x = torch.diag(torch.arange(3.0)).requires_grad_()
    fake = fake_torch(tape)
    parts = Parts(fake)
    waiting = waiting_operators(torch, EIGEN, backend="CPU")
    with splitting(fake, parts, waiting=waiting, backend="CPU"):
        parts.begin()
        values = torch.linalg.eigh(x)[0]
        values.sum().backward()
        parts.end()
    assert values.tolist() == [0.0, 1.0, 2.0]
    assert torch.allclose(x.grad, torch.eye(3))
    assert parts.between["aten::_linalg_eigh"] == 1
    said = len(tape.said)
    torch.linalg.eigh(torch.eye(2))
    assert len(tape.said) == said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wait", "said"),
    [
        (lambda fake: fake.cuda.synchronize(), "wait"),
        (lambda fake: fake.cuda.empty_cache(), "empty"),
        (lambda fake: fake.cuda.Stream().synchronize(), None),
        (lambda fake: _recorded(fake).elapsed_time(None), None),
    ],
)
def test_waiting_for_the_gpu_ends_a_part(
    tape: Tape, wait: Callable[[Any], object], said: str | None
) -> None:
    parts, _ = run(tape, wait)
    first, second = ["begin", "end", "replay"], ["begin", "end", "replay"]
    assert tape.said == [*first, *([said] if said else []), *second]
    assert sum(parts.between.values()) == 1


class Batch:
    """A tensor of a loader, pinned, or its place on the GPU."""

    def __init__(self, *, is_cuda: bool) -> None:
        self.is_cuda, self.is_pinned = is_cuda, lambda: not is_cuda


def test_pinned_memory_that_was_read_before_a_capture_lives_as_long_as_the_graphs() -> None:
    parts = Parts(fake_torch(Tape()))
    copied = []
    kernel = SimpleNamespace(call_boxed=lambda *of: copied.append(of[-1]))
    copy = _copying(SimpleNamespace(is_tensor=lambda _: True), parts, kernel)
    here, batches = Batch(is_cuda=True), [Batch(is_cuda=False) for _ in range(2)]
    alive = [weakref.ref(batch) for batch in batches]
    for batch, waits in zip(batches, (True, False), strict=True):
        copy(None, here, batch, not waits)
    del batches, batch

    assert copied == [False, True]  # nothing waits that did not
    assert [ref() is not None for ref in alive] == [False, True]
    parts.release()
    assert alive[1]() is None


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
