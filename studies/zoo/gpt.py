"""GPT-3 training steps in plain PyTorch, to trace: ``studies/zoo/gpt.py:xl_layer`` and others.

Attention is written out, as in the study's kernels; or left to PyTorch, with ``fused``. Weights and
tokens are random. Each function named like a model returns nothing and runs one whole step:
forward, backward, optimizer.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes and variants.

    Attributes:
        layers: Transformer blocks.
        hidden: Channels.
        heads: Attention heads.
        batch: Sequences of a micro-batch.
        sequence: Tokens of a sequence.
        vocabulary: Rows of the embedding; 0 trains the blocks alone on random activations.
        fused: Whether attention is left to PyTorch.
        micro_batches: Gradient accumulation.
        recompute: Whether activations are recomputed in the backward pass.
        dtype: Of weights and activations.
        compiled: Whether the model is compiled.
    """

    layers: int
    hidden: int
    heads: int
    batch: int
    sequence: int = 1024
    vocabulary: int = 50304
    fused: bool = False
    micro_batches: int = 1
    recompute: bool = False
    dtype: torch.dtype = torch.bfloat16
    compiled: bool = False


class Attention(nn.Module):
    """Causal self-attention."""

    mask: torch.Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.fused = config.heads, config.fused
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.out = nn.Linear(config.hidden, config.hidden)
        ones = torch.ones(config.sequence, config.sequence, dtype=torch.bool)
        self.register_buffer("mask", ones.triu(1))

    def forward(self, x_btc: torch.Tensor) -> torch.Tensor:
        """Attend; B batch, T sequence, C hidden, H heads, D hidden of a head."""
        b, t, c = x_btc.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.qkv(x_btc).split(c, dim=2)
        )
        if self.fused:
            y_bhtd = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(2, 3)) / math.sqrt(c // self.heads)
            y_bhtd = scores.masked_fill(self.mask, -math.inf).softmax(dim=-1) @ v
        out: torch.Tensor = self.out(y_bhtd.transpose(1, 2).reshape(b, t, c))
        return out


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.hidden), nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.up = nn.Linear(config.hidden, 4 * config.hidden)
        self.down = nn.Linear(4 * config.hidden, config.hidden)

    def forward(self, x_btc: torch.Tensor) -> torch.Tensor:
        """Add attention's and the MLP's part to the residual stream."""
        x_btc = x_btc + self.attention(self.norm1(x_btc))
        hidden = functional.gelu(self.up(self.norm2(x_btc)), approximate="tanh")
        out: torch.Tensor = x_btc + self.down(hidden)
        return out


class Gpt(nn.Module):
    """The model; without a vocabulary only its blocks."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        if config.vocabulary:
            self.tokens = nn.Embedding(config.vocabulary, config.hidden)
            self.positions = nn.Embedding(config.sequence, config.hidden)
            self.norm = nn.LayerNorm(config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of tokens, or a stand-in for it of activations."""
        if self.config.vocabulary:
            places = torch.arange(x.shape[1], device=x.device)
            x = self.tokens(x) + self.positions(places)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.config.recompute else block(x)
        if not self.config.vocabulary:
            return (x * targets).sum()
        logits = self.norm(x) @ self.tokens.weight.t()
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def training_step(config: Config) -> Callable[[], None]:
    """Build a model with its optimizer and data, and return its training step."""
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model: Any = Gpt(config).to(config.dtype)
        for name, weight in model.named_parameters():
            if not name.endswith("bias") and weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True, capturable=True)
        shape = (config.batch, config.sequence)
        if config.vocabulary:
            data = torch.randint(config.vocabulary, (2, *shape))
        else:
            data = torch.randn(2, *shape, config.hidden, dtype=config.dtype)
    model = torch.compile(model) if config.compiled else model

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for _ in range(config.micro_batches):
            (model(data[0], data[1]) / config.micro_batches).backward()
        optimizer.step()

    return step


XL = Config(layers=24, hidden=2048, heads=16, batch=8)
MEDIUM = Config(layers=24, hidden=1024, heads=16, batch=24)
SMALL = Config(layers=12, hidden=768, heads=12, batch=16)
TINY = Config(layers=2, hidden=256, heads=4, batch=8, sequence=256, vocabulary=1024)


@cache
def _built(config: Config) -> Callable[[], None]:
    return training_step(config)


def xl_layer() -> None:
    """Run one layer of GPT-3 XL at batch 40, blocks alone, as FACTS measured it."""
    _built(replace(XL, layers=1, batch=40, vocabulary=0))()


def xl() -> None:
    """Run GPT-3 XL whole."""
    _built(XL)()


def small() -> None:
    """Run the 125 M model whole."""
    _built(SMALL)()


def tiny() -> None:
    """Run a model that fits anywhere."""
    _built(TINY)()


def tiny_fused() -> None:
    """Run it with fused attention, in fp16."""
    _built(replace(TINY, fused=True, dtype=torch.float16))()


def tiny_compiled() -> None:
    """Run it compiled."""
    _built(replace(TINY, compiled=True))()


def tiny_accumulated() -> None:
    """Run it with four micro-batches, in fp32."""
    _built(replace(TINY, micro_batches=4, dtype=torch.float32))()


def tiny_recomputed() -> None:
    """Run it with activations recomputed."""
    _built(replace(TINY, recompute=True))()


def tiny_synchronising() -> None:
    """Run it as one in which the host asks for a number on the way."""
    _built(TINY)()
    float(torch.ones(1, device="cuda").sum().item())
