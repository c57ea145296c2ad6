"""GPT-3's training step as the kernels of llm.c, with their FLOPs and bytes.

Shape letters: B batch, T sequence, N = B·T tokens, C hidden, H heads, V padded vocabulary,
L layers, P parameters. All tensors are bf16 (2 bytes) unless a term says otherwise.

Bytes are the least DRAM traffic: every tensor a kernel reads or writes counted once, and what it
accumulates into counted twice. FLOPs of a matrix product are 2·m·n·k; those of the other kernels
are a count per element. The counts follow llm.c's kernels as arXiv 2601.08539 ran them.

With tp GPUs the kernels are those of one, sharded as Megatron-LM does with sequence parallelism:

* qkv, fc and lm_head by columns, attproj and fcproj by rows, attention by heads;
* layer norms, residuals and the biases after attproj and fcproj by the sequence;
* the embedding, the logits and their loss by the vocabulary, tokens spread evenly over it.

Collectives are Megatron-LM's too: the sequence is gathered before products that are sharded by
columns, and what products sharded by rows make is summed and scattered over it; in the backward
pass the other way round, and inputs are gathered once more for gradients of weights. The loss is
summed over the vocabulary, gradients of what every GPU holds at the end. The step waits for each;
their bytes are those that one GPU of a ring sends. ``collectives=0`` leaves them out, as the paper
does.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from underclock.errors import UsageError
from underclock.records import Kernel, Kind, Pass, Step
from underclock.units import name_hint

BF16 = 2
"""Bytes of a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes that decide every kernel of a step."""

    layers: int
    hidden: int
    heads: int

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return what may be changed: every number."""
        return tuple(field.name for field in dataclasses.fields(cls) if field.type is int)

    def changed(self, overrides: Mapping[str, int]) -> Self:
        """Return a copy with other sizes.

        Raises:
            UsageError: No such size.
            ValueError: Sizes that make no model.
        """
        names = self.names()
        unknown = sorted(overrides.keys() - set(names))
        if unknown:
            raise UsageError(
                f"no parameter named {unknown[0]!r}", hint=name_hint(unknown[0], names)
            )
        return dataclasses.replace(self, **overrides)


class KernelWriter:
    """Writes down kernels section by section, in launch order.

    Args:
        passes: Which pass each section belongs to.
        per_layer: Sections whose kernels run once in every layer.
    """

    def __init__(self, layers: int, passes: Mapping[str, Pass], per_layer: set[str]) -> None:
        self.section = ""
        self._layers, self._passes, self._per_layer = layers, passes, per_layer
        self._kernels: list[Kernel] = []

    def memory(self, name: str, size: str, flops: float, moved: float) -> None:
        """Add a kernel that is not a matrix product; ``moved`` in bytes."""
        self.add(name, Kind.MEMORY, size, flops, moved)

    def gemm(self, name: str, m: int, n: int, k: int, *, accumulate: bool = False) -> None:
        """Add C[m,n] (+)= A[m,k] B[k,n]."""
        elements = m * k + k * n + m * n * (2 if accumulate else 1)
        self.add(name, Kind.GEMM, f"{m}x{n}x{k}", 2.0 * m * n * k, BF16 * elements)

    def add(self, name: str, kind: Kind, size: str, flops: float, moved: float) -> None:
        """Add a kernel of any kind to the section."""
        self._kernels.append(
            Kernel(
                name=name,
                kind=kind,
                pass_=self._passes[self.section],
                section=self.section,
                shape=size,
                count=self._times(self.section),
                flops=float(flops),
                bytes_moved=float(moved),
            )
        )

    def step(self, name: str, parameters: dict[str, int]) -> Step:
        """Return the step; runs of per-layer kernels are repeated where they stand."""
        order: list[int] = []
        numbered = enumerate(self._kernels)
        for section, run in itertools.groupby(numbered, lambda each: each[1].section):
            order += [index for index, _ in run] * self._times(section)
        return Step(
            name=name, kernels=tuple(self._kernels), order=tuple(order), parameters=parameters
        )

    def _times(self, section: str) -> int:
        return self._layers if section in self._per_layer else 1


_VOCABULARY_ALIGNMENT = 128  # llm.c pads the vocabulary so that GEMM shapes stay aligned

_FP32, _INT32 = 4, 4
_PASS_OF_SECTION = {
    "fwd": Pass.FORWARD,
    "Lf": Pass.FORWARD,
    "loss": Pass.FORWARD,
    "bwd": Pass.BACKWARD,
    "Lb": Pass.BACKWARD,
    "opt": Pass.OPTIMIZER,
}
_PER_LAYER = {"Lf", "Lb"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape(ModelShape):
    """Sizes of a training step."""

    batch: int = 40  # sequences per step on one GPU
    sequence: int = 1024  # tokens per sequence
    vocabulary: int = 50257  # distinct tokens, before padding
    positions: int = 2048  # rows of the position embedding; GPT-3's context length
    # SMs of the GPU: llm.c sizes its bias reduction by it. An RTX 3080 Ti has 80
    sm_count: int = 80
    threads_per_sm: int = 1536  # resident threads of an SM, for the same reason
    # GPUs that share one step by tensor and sequence parallelism; the kernels are those of one
    tp: int = 1
    collectives: int = 1  # whether what these GPUs tell one another is listed: 1 or 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1 and field.name != "collectives":
                raise ValueError(f"{field.name} must be at least 1")
        if self.collectives not in {0, 1}:
            raise ValueError(f"collectives are listed or not, 1 or 0, got {self.collectives}")
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is not a multiple of {self.heads} heads")
        if self.sequence > self.positions:
            raise ValueError(f"sequence {self.sequence} exceeds {self.positions} positions")
        # Hidden and 4 x hidden are multiples of the heads, so they divide where the heads do.
        for noun, size in (
            ("heads", self.heads),
            ("padded vocabulary", self.padded_vocabulary),
            ("sequence", self.sequence),
        ):
            if size % self.tp:
                most = math.gcd(self.heads, self.padded_vocabulary, self.sequence)
                fitting = ", ".join(str(n) for n in range(1, most + 1) if most % n == 0)
                raise ValueError(
                    f"{noun} {size} does not divide among tp {self.tp} GPUs; tp may be {fitting}"
                )

    def as_parameters(self) -> dict[str, int]:
        """Return every size by name; ``tp`` and ``collectives`` only where there are any.

        A step of one GPU is thus the same file, byte for byte, as before ``tp`` existed, and one
        without collectives as before these did.
        """
        sizes = dataclasses.asdict(self)
        if self.tp == 1 or not self.collectives:
            del sizes["collectives"]
        if self.tp == 1:
            del sizes["tp"]
        return sizes

    @property
    def part(self) -> str:
        """What to write behind a dimension that the GPUs share: ``/4``; nothing for one GPU."""
        return f"/{self.tp}" if self.tp > 1 else ""

    @property
    def padded_vocabulary(self) -> int:
        """Vocabulary rounded up to the GEMM alignment."""
        return -(-self.vocabulary // _VOCABULARY_ALIGNMENT) * _VOCABULARY_ALIGNMENT

    @property
    def parameters(self) -> int:
        """Trainable parameters of the model, embeddings tied, as llm.c allocates them."""
        return dataclasses.replace(self, tp=1).rank_parameters

    @property
    def rank_parameters(self) -> int:
        """Trainable parameters that one of the GPUs holds.

        Matrices, the vocabulary and the biases of column-parallel products are sharded; position
        embedding, layer norms and the biases of row-parallel products are on every GPU.
        """
        c = self.hidden
        sharded = self.padded_vocabulary * c + self.layers * (12 * c * c + 7 * c)
        return sharded // self.tp + self.replicated_parameters

    @property
    def replicated_parameters(self) -> int:
        """Trainable parameters that every one of the GPUs holds."""
        return (self.positions + self.layers * 6 + 2) * self.hidden

    def step(self, name: str) -> Step:
        """Return one GPU's part of one training step, optimizer included, in launch order."""
        add = _Builder(self)
        _forward(add)
        _backward(add)
        p = add.shape.rank_parameters
        add.section = "opt"
        add.memory("global_norm_squared_kernel", str(p), 2 * p, BF16 * p)
        add.collective("all-reduce gradient norm", 1, item=_FP32)
        # Reads gradient, master weight and both moments, writes the last three and the weight.
        add.memory("adamw_kernel3 (16 launches)", str(p), 15 * p, 28 * p)
        return add.step(name, self.as_parameters())


# GPT-3's table 2.1 (arXiv 2005.14165), but XL with 16 heads as in arXiv 2601.08539 and 13 B with
# hidden 5120, a multiple of its 40 heads.
MODELS = {
    "gpt3-125m": Shape(layers=12, hidden=768, heads=12),
    "gpt3-350m": Shape(layers=24, hidden=1024, heads=16),
    "gpt3-760m": Shape(layers=24, hidden=1536, heads=16),
    "gpt3-xl": Shape(layers=24, hidden=2048, heads=16),
    "gpt3-2.7b": Shape(layers=32, hidden=2560, heads=32),
    "gpt3-6.7b": Shape(layers=32, hidden=4096, heads=32),
    "gpt3-13b": Shape(layers=40, hidden=5120, heads=40),
    "gpt3-175b": Shape(layers=96, hidden=12288, heads=96),
}


class _Builder(KernelWriter):
    """Writes down a training step; one method per kind of kernel."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape.layers, _PASS_OF_SECTION, _PER_LAYER)
        self.shape = shape

    def batched(self, name: str, m: int, n: int, k: int) -> None:
        """Add one product per sequence and head of this GPU."""
        batch = self.shape.batch * self.shape.heads // self.shape.tp
        moved = BF16 * batch * (m * k + k * n + m * n)
        self.add(name, Kind.GEMM, f"{batch}x[{m}x{n}x{k}]", 2.0 * batch * m * n * k, moved)

    def collective(self, name: str, rows: int, columns: int = 1, *, item: int = BF16) -> None:
        """Add what the GPUs do together to a tensor of all of them, by the name's first word.

        A ring gathers or scatters it in tp - 1 sends of a part, and reduces it for all in twice as
        many (Patarasuk and Yuan, 2009).
        """
        p = self.shape.tp
        if p == 1 or not self.shape.collectives:
            return
        what = name.partition(" ")[0]
        sent = (p - 1) * rows * columns / p
        own = rows // p if what == "all-gather" else rows
        self.add(
            name,
            Kind.COLLECTIVE,
            f"{p}x[{own}x{columns}]" if columns > 1 else f"{p}x[{own}]",
            0.0 if what == "all-gather" else sent,
            item * sent * (2 if what == "all-reduce" else 1),
        )

    def columns_backward(self, name: str, tokens: int, columns: int) -> None:
        """Add the gradients of a product that is sharded by columns, and its input once more."""
        hidden = self.shape.hidden
        self.collective(f"all-gather {name} input", tokens, hidden)
        self.gemm(f"{name} dgrad", hidden, tokens, columns)
        self.collective(f"reduce-scatter {name} dgrad", tokens, hidden)
        self.gemm(f"{name} wgrad", hidden, columns, tokens, accumulate=True)

    def bias_backward(self, suffix: str, tokens: int, channels: int) -> None:
        """Add the column sum of a gradient, and its second stage where llm.c needs one."""
        shape, elements = self.shape, tokens * channels
        name, size = f"matmul_backward_bias_kernel9 {suffix}", f"{tokens}x{channels}"
        self.memory(name, size, elements, BF16 * elements)
        # llm.c: one block column covers 64 channels; as many block rows as fill the GPU.
        block = 768 if shape.threads_per_sm == 1536 else 1024  # noqa: PLR2004 - llm.c's rule
        columns = -(-channels // 64)
        rows = max(1, shape.threads_per_sm * shape.sm_count // (block * columns))
        if rows > 1:
            moved = _FP32 * channels * rows + 2 * BF16 * channels
            self.memory(
                f"reduce_add_sum_kernel {suffix}", f"{channels}x{rows}", channels * rows, moved
            )


def _forward(add: _Builder) -> None:
    s = add.shape
    p, b, t, c = s.tp, s.batch, s.sequence, s.hidden
    heads, v, head = s.heads // p, s.padded_vocabulary // p, c // s.heads
    n = b * t
    own = n // p  # tokens of this GPU where the sequence is sharded
    nc = own * c  # elements of a tensor that is sharded, whichever way
    norm_stats = 2 * _FP32 * own  # mean and reciprocal deviation of each token
    causal = b * heads * t * (t + 1) // 2  # attention scores on and below the diagonal
    add.section = "fwd"
    # A GPU finds the tokens of its part of the vocabulary, and writes zeros for the rest.
    embed = BF16 * (nc + n * c + t * c // p) + _INT32 * n
    add.memory("encoder_forward_kernel3", f"{n}x{c}", nc, embed)
    add.collective("reduce-scatter embedding", n, c)
    add.memory("layernorm_forward_kernel6", f"{own}x{c}", 8 * nc, 2 * BF16 * nc + norm_stats)
    add.section = "Lf"
    add.collective("all-gather qkv", n, c)
    add.gemm("qkv", 3 * c // p, n, c)
    add.memory("permute_kernel", f"{n}x3C{s.part}", 0, 6 * BF16 * nc)
    add.batched("bgemm QK^T", t, t, head)
    scores = f"{b * heads}x{t}x{t} causal"
    add.memory("softmax_forward_kernel5", scores, 5 * causal, 2 * BF16 * causal)
    add.batched("bgemm att.V", head, t, t)
    add.memory("unpermute_kernel", f"{n}xC{s.part}", 0, 2 * BF16 * nc)
    add.gemm("attproj", c, n, c // p)
    add.collective("reduce-scatter attproj", n, c)
    residual = (f"{own}xC", 9 * nc, 4 * BF16 * nc + norm_stats)
    add.memory("fused_residual_forward_kernel5 (ln2)", *residual)
    add.collective("all-gather fc", n, c)
    add.gemm("fc", 4 * c // p, n, c)
    add.memory("gelu_forward_kernel2", f"{n}x4C{s.part}", 32 * nc, 8 * BF16 * nc)
    add.gemm("fcproj", c, n, 4 * c // p)
    add.collective("reduce-scatter fcproj", n, c)
    add.memory("fused_residual_forward_kernel5 (ln1/lnf)", *residual)
    add.section = "fwd"
    add.collective("all-gather lm_head", n, c)
    add.gemm("lm_head", v, n, c)
    add.section = "loss"
    # Of every token the greatest logit; then the sum of exponentials and the target's logit.
    add.collective("all-reduce loss maximum", n, item=_FP32)
    add.collective("all-reduce loss sums", 2 * n, item=_FP32)
    add.memory("fused_classifier_kernel5", f"{n}x{v}", 6 * n * v, 3 * BF16 * n * v)


def _backward(add: _Builder) -> None:
    s = add.shape
    p, b, t, c = s.tp, s.batch, s.sequence, s.hidden
    heads, v, head = s.heads // p, s.padded_vocabulary // p, c // s.heads
    n = b * t
    own = n // p
    nc = own * c
    causal = b * heads * t * (t + 1) // 2
    wide, norm = f"{n}x4C{s.part}", (f"{own}xC", 12 * nc, 4 * BF16 * nc)
    add.section = "bwd"
    add.columns_backward("lm_head", n, v)
    add.memory("layernorm_backward_kernel10 (lnf)", *norm)
    add.section = "Lb"
    add.memory("gelu_forward_kernel2 (recompute=1)", wide, 32 * nc, 8 * BF16 * nc)
    add.bias_backward("fcproj", own, c)
    add.collective("all-gather fcproj gradient", n, c)
    add.gemm("fcproj dgrad", 4 * c // p, n, c)
    add.memory("gelu_backward_inplace_kernel", wide, 64 * nc, 12 * BF16 * nc)
    add.gemm("fcproj wgrad", 4 * c // p, c, n, accumulate=True)
    add.bias_backward("fc", n, 4 * c // p)
    add.columns_backward("fc", n, 4 * c // p)
    add.memory("layernorm_backward_kernel10 (ln2)", *norm)
    add.bias_backward("attproj", own, c)
    add.collective("all-gather attproj gradient", n, c)
    add.gemm("attproj dgrad", c // p, n, c)
    add.gemm("attproj wgrad", c // p, c, n, accumulate=True)
    add.memory("unpermute_kernel_backward", f"{n}xC{s.part}", 0, 2 * BF16 * nc)
    add.batched("bgemm datt", t, t, head)
    add.batched("bgemm dv", head, t, t)
    # Reads scores and gradients below the diagonal, writes the full square with zeros above it.
    name, moved = "softmax_autoregressive_backward_inplace_kernel", 2 * causal + b * heads * t * t
    add.memory(name, f"{b * heads}x{t}x{t}", 4 * causal, BF16 * moved)
    add.batched("bgemm dq", head, t, t)
    add.batched("bgemm dk", head, t, t)
    add.memory("permute_kernel_backward", f"{n}x3C{s.part}", 0, 6 * BF16 * nc)
    add.bias_backward("qkv", n, 3 * c // p)
    add.columns_backward("qkv", n, 3 * c // p)
    add.memory("layernorm_backward_kernel10 (ln1)", *norm)
    add.section = "bwd"
    positions = BF16 * (nc + 2 * t * c // p)
    add.memory("wpe_backward_kernel", f"{t // p}xC", nc, positions)
    add.collective("all-gather embedding gradient", n, c)
    add.memory("wte_backward_kernel", f"{own}xC gather-scatter", nc, 3 * BF16 * nc)
    add.collective("all-reduce replicated gradients", s.replicated_parameters)
