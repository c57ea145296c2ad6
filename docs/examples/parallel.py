"""A GPT on several GPUs by PyTorch's tensor and sequence parallelism, unaware of Underclock.

``torchrun --nproc-per-node 2 parallel.py`` trains on as many GPUs, or on the CPU where there are
none. What its collectives are is seen on the CPU already:
``underclock trace --assume -o step.json -- torchrun --nproc-per-node 2 parallel.py``.
"""

import os

import torch
from torch import distributed, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

LAYERS, HIDDEN, HEADS, BATCH, SEQUENCE, VOCABULARY, STEPS = 2, 64, 4, 2, 32, 128, 5


class Block(nn.Module):
    """One layer; of a GPU that shares it, its part of the heads and of the MLP's columns."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.query, self.key, self.value, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.attention, self.mlp = nn.Identity(), nn.Identity()  # where the sequence is gathered

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add attention's and the MLP's part to the residual stream."""
        whole = self.attention(self.norm1(x))
        heads = (BATCH, SEQUENCE, -1, HIDDEN // HEADS)
        query, key, value = (
            each(whole).view(heads).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        out: torch.Tensor = x + self.down(gelu(self.up(self.mlp(self.norm2(x)))))
        return out


class Gpt(nn.Module):
    """The model."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.places = nn.Embedding(SEQUENCE, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        places = torch.arange(SEQUENCE, device=x.device)[None]
        x = self.tokens(x) + self.places(places)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def parallel(model: Gpt, device: str) -> None:
    """Spread a model over all ranks."""
    mesh = distributed.init_device_mesh(device, (distributed.get_world_size(),))
    lookup = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    for block in model.blocks:
        parallelize_module(
            block,
            mesh,
            {
                "norm1": SequenceParallel(use_local_output=True),
                "norm2": SequenceParallel(use_local_output=True),
                "attention": gather,
                "mlp": gather,
                **dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel()),
                **dict.fromkeys(("out", "down"), RowwiseParallel(output_layouts=Shard(1))),
            },
        )
    head = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
    plan = {"tokens": lookup, "places": lookup, "norm": SequenceParallel(), "head": head}
    parallelize_module(model, mesh, plan)


def main() -> None:
    """Train on random tokens."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    torch.manual_seed(0)
    model = Gpt().to(device)
    parallel(model, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randint(VOCABULARY, (2, BATCH, SEQUENCE), device=device)
    for step in range(STEPS):
        with loss_parallel():
            loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if distributed.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
