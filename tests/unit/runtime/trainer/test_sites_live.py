"""Places of a step that PyTorch traced on the CPU, and the same step marked as it runs on."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

from small_training import Noted
from underclock.core.tracing.profile import HostTimeline, activities
from underclock.hw.cuda.torch_step import named_modules
from underclock.records.work import module_calls_text
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.marks import Marker
from underclock.runtime.trainer.page import Page
from underclock.runtime.trainer.sites import sites_of

_LAUNCHING = {
    *("aten::addmm", "aten::mm", "aten::add", "aten::add_", "aten::mul", "aten::relu"),
    *("aten::sum", "aten::threshold_backward", "aten::mse_loss", "aten::mse_loss_backward"),
    *("aten::tanh", "aten::tanh_backward"),
}
Step = Callable[[], object]


class Block(nn.Module):
    """Two products, one module called twice, and what is added by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.act = nn.Linear(4, 8), nn.Linear(8, 4), nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add to what comes in."""
        y: torch.Tensor = self.act(self.down(self.act(self.up(x))))
        return x + y


class Gpt(nn.Module):
    """A model that launches between its children, and after the last."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Linear(4, 4), nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run through all, the norm twice."""
        x = x * 2.0
        x = self.tokens(x) + self.positions(x)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x) + 1.0
        return torch.relu(self.norm(x))


def _stepping(model: nn.Module, loss: Callable[[torch.Tensor], torch.Tensor], passes: int) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        for _ in range(passes):
            loss(model(torch.ones(2, 4))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def _squares(output: torch.Tensor) -> torch.Tensor:
    return (output * output).sum()


def _plain() -> Step:
    return _stepping(Gpt(), _squares, 1)


def _gathered() -> Step:
    return _stepping(Gpt(), _squares, 3)


def _judged() -> Step:
    judge, measure = Block(), nn.MSELoss()

    def loss(output: torch.Tensor) -> torch.Tensor:
        truth = judge(torch.zeros(2, 4)).sum()
        loss: torch.Tensor = measure(judge(output).sum(), truth)
        return loss

    return _stepping(Gpt(), loss, 1)


def _recomputed() -> Step:
    model = Gpt()
    for at, block in enumerate(model.blocks):
        model.blocks[at] = checkpoint_wrapper(block)
    return _stepping(model, _squares, 1)


def _replicated() -> Step:
    return _stepping(DistributedDataParallel(Gpt()), _squares, 1)


@pytest.fixture
def _job() -> Iterator[None]:
    distributed: Any = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def _traced(step: Step, folder: Path) -> dict[str, Any]:
    """Return the profile of a step as if some of its operators launched a kernel each."""
    with (
        named_modules(torch),
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
        ) as profile,
    ):
        step()
    path = folder / "trace.json"
    profile.export_chrome_trace(str(path))
    trace: dict[str, Any] = json.loads(path.read_bytes())
    launching = [each for each in trace["traceEvents"] if each.get("name") in _LAUNCHING]
    for number, event in enumerate(launching):
        launch = {"ph": "X", "ts": event["ts"], "dur": 0.0, "args": {"correlation": number}}
        call = {**launch, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": event["tid"]}
        trace["traceEvents"] += [call, {**launch, "cat": "kernel", "name": event["name"]}]
    return trace


@pytest.mark.untraced
@pytest.mark.usefixtures("_job")
@pytest.mark.parametrize("make", [_plain, _gathered, _judged, _recomputed, _replicated])
def test_every_place_of_a_step_that_was_traced_is_seen(
    make: Callable[[], Step], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    step = make()
    for _ in range(2):
        step()
    seen = activities(HostTimeline(_traced(step, tmp_path)))
    modules = [module_calls_text((*each.callers, each.module)) for each in seen]
    sites = sites_of(modules, [each.pass_ for each in seen])
    marks = Noted()
    with closing(Page.create(tmp_path / "run.page", digest=bytes(32), marks=(0,))) as page:
        told = [(site.event, site.path, site.occurrence, site.total) for site in sites]
        marker = Marker(told, lambda: page, lambda _page, _optimizer: marks)
        marker.attach(torch)
        for _ in range(4):
            step()

        every = list(range(1, len(sites) + 1))
        assert page.sentence == f"{len(sites)} of {len(sites)} marks"
        assert page.state == pages.MARKING
        assert marks.marks == [*every, *every, 1]
        assert {path for _, path, *_ in told} >= {"blocks.1", "norm"}
        marker.detach()
