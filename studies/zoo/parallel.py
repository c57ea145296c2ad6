"""GPT-3 training steps on several GPUs, one process each: ``studies/zoo/parallel.py:ddp``.

Start them with ``torchrun``: each function runs one whole step of this rank. ``alone`` is the same
model on one GPU, without the other ranks. As a script it trains: ``parallel.py ddp 100``.
"""

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from gpt import XL, Gpt
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

CONFIG = replace(XL, layers=8, batch=8)
LEARNING_RATE = 1e-5


def _rank() -> int:
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(rank)
    if not distributed.is_initialized():
        distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    return rank


def _model() -> Any:
    torch.manual_seed(0)
    with torch.device("cuda"):
        return Gpt(CONFIG).to(CONFIG.dtype)


def _step(model: Any, parameters: Iterable[Any], seed: int) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)
    torch.manual_seed(seed)
    data = torch.randint(CONFIG.vocabulary, (2, CONFIG.batch, CONFIG.sequence), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        model(data[0], data[1]).backward()
        optimizer.step()

    return step


@cache
def _ddp() -> Callable[[], None]:
    rank = _rank()
    model = DistributedDataParallel(_model(), device_ids=[rank], gradient_as_bucket_view=True)
    return _step(model, model.parameters(), 1 + rank)


@cache
def _fsdp() -> Callable[[], None]:
    rank = _rank()
    model = _model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return _step(model, model.parameters(), 1 + rank)


@cache
def _alone() -> Callable[[], None]:
    rank = _rank()
    model = _model()
    return _step(model, model.parameters(), 1 + rank)


def ddp() -> None:
    """Train with gradients averaged over ranks."""
    _ddp()()


def fsdp() -> None:
    """Train with parameters, gradients and moments spread over ranks."""
    _fsdp()()


def alone() -> None:
    """Train without the others."""
    _alone()()


if __name__ == "__main__":
    for _ in range(int(sys.argv[2])):
        {"ddp": ddp, "fsdp": fsdp, "alone": alone}[sys.argv[1]]()
    torch.cuda.synchronize()
    distributed.destroy_process_group()
