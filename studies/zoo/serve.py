"""A Llama-like model that serves, in plain PyTorch: ``studies/zoo/serve.py:decode`` and `prefill`.

Grouped-query attention, SwiGLU, RMSNorm, rotary positions, bf16; sizes of a layer are those of
Llama 3 8B. There are few layers, and the head is as much smaller, so that its share of a step is
that of the whole model. Weights are random, of the scale of trained ones; the cache holds random
keys and values. A step runs at one batch and context, as a CUDA graph of a server does, and what
it writes lies where it read: run again, it is the same step.

    underclock trace studies/zoo/serve.py:decode --grid batch=1,8,32,128 context=1k,8k -o family
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch.nn import functional

_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_DEVIATION, _ROPE_BASE = 0.02, 500_000.0


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of a model; D is hidden over heads."""

    layers: int = 4
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    intermediate: int = 14336
    vocabulary: int = 16032

    @property
    def head(self) -> int:
        """Channels of a head."""
        return self.hidden // self.heads


LLAMA = Sizes() if torch.cuda.is_available() else Sizes(layers=2, hidden=256, heads=8, kv_heads=2)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Weights of one transformer block; gate and up are one product, as are q, k and v."""

    norm1: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    norm2: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Model:
    """Weights, and how positions turn."""

    sizes: Sizes
    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: torch.Tensor


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=_DEVICE, dtype=torch.bfloat16) * _DEVIATION


def _near_one(width: int) -> torch.Tensor:
    return 1.0 + _random(width)


@cache
def _model() -> Model:
    torch.manual_seed(0)
    s = LLAMA
    width = (s.heads + 2 * s.kv_heads) * s.head
    return Model(
        sizes=s,
        embedding=_random(s.vocabulary, s.hidden),
        layers=tuple(
            Layer(
                norm1=_near_one(s.hidden),
                qkv=_random(width, s.hidden),
                out=_random(s.hidden, s.hidden),
                norm2=_near_one(s.hidden),
                gate_up=_random(2 * s.intermediate, s.hidden),
                down=_random(s.hidden, s.intermediate),
            )
            for _ in range(s.layers)
        ),
        norm=_near_one(s.hidden),
        head=_random(s.vocabulary, s.hidden),
    )


def _turning(first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and signed sines of positions. Shape (1, 1, count, D) each."""
    half = LLAMA.head // 2
    rates = _ROPE_BASE ** (-torch.arange(half, device=_DEVICE, dtype=torch.float32) / half)
    angles = torch.arange(first, first + count, device=_DEVICE)[:, None] * rates
    cos, sin = angles.cos(), angles.sin()
    both = torch.cat([cos, cos], 1), torch.cat([-sin, sin], 1)
    return both[0].bfloat16()[None, None], both[1].bfloat16()[None, None]


def _step(batch: int, tokens: int, context: int) -> Callable[[], None]:
    """Return a step that runs the last tokens of a context of each sequence through the model.

    Shape letters: B batch, T tokens, C context, H heads, K heads of keys, D channels of a head.
    """
    model, s = _model(), LLAMA
    torch.manual_seed(1)
    shape = (batch, s.kv_heads, context, s.head)
    caches = [(_normal(*shape), _normal(*shape)) for _ in range(s.layers)]
    words = torch.randint(s.vocabulary, (batch, tokens), device=_DEVICE)
    cos, sin = _turning(context - tokens, tokens)
    here = slice(context - tokens, context)
    split = [s.heads * s.head, s.kv_heads * s.head, s.kv_heads * s.head]

    def attended(
        x: torch.Tensor, layer: Layer, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        qk_width = split[0] + split[1]
        qkv = functional.linear(x, layer.qkv)
        qk = qkv[..., :qk_width].view(batch, tokens, -1, s.head).transpose(1, 2)
        qk = torch.addcmul(qk * cos, qk.roll(s.head // 2, -1), sin)
        keys[:, :, here] = qk[:, s.heads :]
        values[:, :, here] = qkv[..., qk_width:].view(batch, tokens, -1, s.head).transpose(1, 2)
        y = functional.scaled_dot_product_attention(
            qk[:, : s.heads], keys, values, is_causal=tokens > 1, enable_gqa=True
        )
        return functional.linear(y.transpose(1, 2).reshape(batch, tokens, -1), layer.out)

    def step() -> None:
        with torch.no_grad():
            x = functional.embedding(words, model.embedding)
            for layer, (keys, values) in zip(model.layers, caches, strict=True):
                normed = functional.rms_norm(x, (s.hidden,), layer.norm1)
                x = x + attended(normed, layer, keys, values)
                normed = functional.rms_norm(x, (s.hidden,), layer.norm2)
                gate, up = functional.linear(normed, layer.gate_up).chunk(2, -1)
                x = x + functional.linear(functional.silu(gate) * up, layer.down)
            last = functional.rms_norm(x[:, -1], (s.hidden,), model.norm)
            functional.linear(last, model.head).argmax(-1)

    return step


def _normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=_DEVICE, dtype=torch.bfloat16)


@lru_cache(maxsize=1)  # caches of one size at a time
def _built(batch: int, tokens: int, context: int) -> Callable[[], None]:
    return _step(batch, tokens, context)


def decode(batch: int = 8, context: int = 1024) -> None:
    """Make one token of each sequence, which attends to a context that is in the cache."""
    _built(batch, 1, context)()


def prefill(batch: int = 1, context: int = 1024) -> None:
    """Read prompts whole."""
    _built(batch, context, context)()
