"""Steps that are hard to look at, or that cannot be: what is said of each is part of the evidence.

``underclock trace tests/gpu/odd.py:changing`` and so on.
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn
from torch.nn import functional


@cache
def _trained() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)).cuda()
    return model, torch.optim.AdamW(model.parameters()), torch.randn(4096, 2048, device="cuda")


def _train(rows: int = 4096) -> None:
    model, optimizer, data = _trained()
    optimizer.zero_grad()
    loss: Any = functional.mse_loss(model(data[:rows]), data[:rows])
    loss.backward()
    optimizer.step()


_rows: list[int] = []


def changing() -> None:
    """Train on another number of rows each time."""
    _rows.append(0)
    _train(1024 + 64 * len(_rows))


def argued(rows: int) -> None:
    """Need an argument."""
    _train(rows)


def failing() -> None:
    """Raise."""
    _train()
    raise ValueError("the learning rate is not a number")


def without_gradient() -> None:
    """Only infer."""
    with torch.no_grad():
        _trained()[0](_trained()[2])


def without_optimizer() -> None:
    """Leave the gradients where they are."""
    model, _, data = _trained()
    model.zero_grad()
    loss: Any = functional.mse_loss(model(data), data)
    loss.backward()


def capturing() -> None:
    """Capture a graph of its own."""
    _train()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ones(4096, device="cuda").sum()


def waiting() -> None:
    """Wait for the GPU after the step, and read a number."""
    _train()
    torch.cuda.synchronize()
    float(_trained()[2].sum())


def timing() -> None:
    """Time itself with events."""
    event: Any = torch.cuda.Event
    begun, ended = (event(enable_timing=True) for _ in range(2))
    begun.record()
    _train()
    ended.record()
    torch.cuda.synchronize()
    assert begun.elapsed_time(ended) > 0


def decomposing() -> None:
    """Ask for eigenvalues, for which a library waits inside."""
    _train()
    with torch.no_grad():
        rows = _trained()[2][:64]
        torch.linalg.eigh(rows @ rows.T)


def refusing() -> None:
    """Refuse to be captured."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("it will not be captured")
    _train()


def large() -> None:
    """Fill most of the GPU, so that no copy of it fits."""
    model, optimizer, data = _filled()
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()


@cache
def _filled() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(0)
    _, total = torch.cuda.mem_get_info()
    width = 16384
    layers = int(0.5 * total / (16 * width * width))
    with torch.device("cuda"):
        model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        data = torch.randn(256, width)
    return model, torch.optim.AdamW(model.parameters(), foreach=False, fused=True), data


@triton.autotune(  # type: ignore[untyped-decorator]
    configs=[triton.Config({"BLOCK": size}) for size in (256, 1024, 4096)], key=["count"]
)
@triton.jit  # type: ignore[untyped-decorator]
def _double(source, to, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < count
    tl.store(to + places, 2 * tl.load(source + places, mask=mask), mask=mask)


def autotuned() -> None:
    """Run a kernel of Triton's that tries its sizes first."""
    _train()
    data = _trained()[2]
    doubled = torch.empty_like(data)
    count = data.numel()
    _double[lambda meta: (triton.cdiv(count, meta["BLOCK"]),)](data, doubled, count)
