"""A pipeline of GPT-3 XL's layers, one stage a GPU, as PyTorch's 1F1B runs it.

Started by ``torchrun``: ``step`` runs one iteration of this rank. As a script it trains, and says
what an iteration takes: ``pipeline.py 100``. Without CUDA it is tiny, over gloo.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from gpt import XL, Block, Config
from torch import distributed, nn
from torch.distributed import pipelining
from torch.nn import functional

ON_GPU = torch.cuda.is_available()
TINY = Config(layers=4, hidden=32, heads=2, batch=1, sequence=16, vocabulary=64)
CONFIG = replace(XL, layers=16, batch=4) if ON_GPU else TINY
MICROBATCHES = 8
LEARNING_RATE = 1e-5
WARMED = 5  # iterations that are not timed


class Stage(nn.Module):
    """Some of the layers; the first stage embeds, the last one tells words."""

    def __init__(self, config: Config, at: int, stages: int) -> None:
        super().__init__()
        first, last = at == 0, at == stages - 1
        self.tokens = nn.Embedding(config.vocabulary, config.hidden) if first else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers // stages))
        self.words = nn.Linear(config.hidden, config.vocabulary) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take tokens, or what the stage before made of them."""
        x = x if self.tokens is None else self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return x if self.words is None else self.words(x)


def _loss(told: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(told.flatten(0, 1).float(), words.flatten())


@cache
def _step() -> Callable[[], None]:
    at = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", at) if ON_GPU else torch.device("cpu")
    if ON_GPU:
        torch.cuda.set_device(device)
    if not distributed.is_initialized():
        distributed.init_process_group(
            "nccl" if ON_GPU else "gloo", device_id=device if ON_GPU else None
        )
    stages = distributed.get_world_size()
    torch.manual_seed(at)
    with device:
        model = Stage(CONFIG, at, stages).to(CONFIG.dtype)
        words = torch.randint(
            CONFIG.vocabulary, (CONFIG.batch * MICROBATCHES, CONFIG.sequence), device=device
        )
    stage = pipelining.PipelineStage(model, at, stages, device)
    schedule = pipelining.Schedule1F1B(stage, MICROBATCHES, loss_fn=_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=ON_GPU)

    def run() -> None:
        optimizer.zero_grad()
        given = (words,) if at == 0 else ()
        told: dict[str, Any] = {"target": words} if at == stages - 1 else {}
        schedule.step(*given, **told)
        optimizer.step()

    return run


def step() -> None:
    """Train on one batch of microbatches."""
    _step()()


def main() -> None:
    """Train."""
    taken_s = []
    for _ in range(int(sys.argv[1])):
        began_s = time.perf_counter()
        step()
        if ON_GPU:
            torch.cuda.synchronize()
        taken_s.append(time.perf_counter() - began_s)
    timed = sorted(taken_s[WARMED:])
    low, high = timed[len(timed) // 20], timed[-1 - len(timed) // 20]
    told = f"{1e3 * statistics.median(timed):.2f} ms ({1e3 * low:.2f} to {1e3 * high:.2f})"
    sys.stdout.write(f"rank {distributed.get_rank()}: {len(timed)} iterations of {told}\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
