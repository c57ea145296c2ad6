"""GPT-3 training steps as the kernels that llm.c launches, with their FLOPs and bytes.

Shape letters: B batch, T sequence, N = B·T tokens, C hidden, H heads, V padded vocabulary,
L layers, P parameters. All tensors are bf16 (2 bytes) unless a term says otherwise.

Bytes are the least DRAM traffic: every tensor a kernel reads or writes counted once, and what it
accumulates into counted twice. FLOPs of a matrix product are 2·m·n·k; those of the other kernels
are a count per element. The counts follow llm.c's kernels as arXiv 2601.08539 ran them.

With tp GPUs the kernels are those of one, sharded as Megatron-LM does with sequence parallelism:

* qkv, fc and lm_head by columns, attproj and fcproj by rows, attention by heads;
* layer norms, residuals and the biases after attproj and fcproj by the sequence;
* the embedding, the logits and their loss by the vocabulary, tokens spread evenly over it.

Collectives between GPUs are not listed, as in the paper.
"""

import dataclasses
from dataclasses import dataclass

from underclock.errors import UsageError
from underclock.records import Kernel, Kind, Pass, Step
from underclock.units import name_hint

_VOCABULARY_ALIGNMENT = 128  # llm.c pads the vocabulary so that GEMM shapes stay aligned

_BF16, _FP32, _INT32 = 2, 4, 4
_PASS_OF_SECTION = {
    "fwd": Pass.FORWARD,
    "Lf": Pass.FORWARD,
    "loss": Pass.FORWARD,
    "bwd": Pass.BACKWARD,
    "Lb": Pass.BACKWARD,
    "opt": Pass.OPTIMIZER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes that decide every kernel of the step."""

    layers: int
    hidden: int
    heads: int
    batch: int = 40
    """Sequences per step on one GPU."""
    sequence: int = 1024
    """Tokens per sequence."""
    vocabulary: int = 50257
    """Distinct tokens, before padding."""
    positions: int = 2048
    """Rows of the position embedding; GPT-3's context length."""
    sm_count: int = 80
    """SMs of the GPU: llm.c sizes its bias reduction by it. An RTX 3080 Ti has 80."""
    threads_per_sm: int = 1536
    """Resident threads of an SM, for the same reason."""
    tp: int = 1
    """GPUs that share one step by tensor and sequence parallelism; the kernels are those of one."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} must be at least 1")
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
                raise ValueError(f"{noun} {size} does not divide among tp {self.tp} GPUs")

    def changed(self, overrides: dict[str, int]) -> "Shape":
        """Return a copy with other sizes.

        Raises:
            UsageError: No such size.
            ValueError: Sizes that make no transformer.
        """
        unknown = sorted(overrides.keys() - set(SIZES))
        if unknown:
            raise UsageError(
                f"no parameter named {unknown[0]!r}", hint=name_hint(unknown[0], SIZES)
            )
        return dataclasses.replace(self, **overrides)

    def as_parameters(self) -> dict[str, int]:
        """Return every size by name; ``tp`` only where there is any parallelism.

        A step of one GPU is thus the same file, byte for byte, as before ``tp`` existed.
        """
        sizes = dataclasses.asdict(self)
        return sizes if self.tp > 1 else {k: v for k, v in sizes.items() if k != "tp"}

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
        return sharded // self.tp + self.positions * c + self.layers * 6 * c + 2 * c


# GPT-3's table 2.1 (arXiv 2005.14165), but XL with 16 heads as in arXiv 2601.08539 and 13 B with
# hidden 5120, a multiple of its 40 heads.
SIZES = tuple(field.name for field in dataclasses.fields(Shape))
"""What may be changed of a workload."""

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


class _Builder:
    """Writes down kernels section by section; one method per kind of kernel."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.kernels: list[Kernel] = []

    def memory(self, section: str, name: str, size: str, *, flops: float, moved: float) -> None:
        """Add a kernel that is not a matrix product; ``moved`` in bytes."""
        self._add(section, name, Kind.MEMORY, size, flops, moved)

    def gemm(
        self, section: str, name: str, m: int, n: int, k: int, *, accumulate: bool = False
    ) -> None:
        """Add C[m,n] (+)= A[m,k] B[k,n]."""
        elements = m * k + k * n + m * n * (2 if accumulate else 1)
        self._add(section, name, Kind.GEMM, f"{m}x{n}x{k}", 2.0 * m * n * k, _BF16 * elements)

    def batched(self, section: str, name: str, m: int, n: int, k: int) -> None:
        """Add one product per sequence and head of this GPU."""
        batch = self.shape.batch * self.shape.heads // self.shape.tp
        self._add(
            section,
            name,
            Kind.GEMM,
            f"{batch}x[{m}x{n}x{k}]",
            2.0 * batch * m * n * k,
            _BF16 * batch * (m * k + k * n + m * n),
        )

    def bias_backward(self, section: str, suffix: str, tokens: int, channels: int) -> None:
        """Add the column sum of a gradient, and its second stage where llm.c needs one."""
        shape = self.shape
        self.memory(
            section,
            f"matmul_backward_bias_kernel9 {suffix}",
            f"{tokens}x{channels}",
            flops=tokens * channels,
            moved=_BF16 * tokens * channels,
        )
        # llm.c: one block column covers 64 channels; as many block rows as fill the GPU.
        block = 768 if shape.threads_per_sm == 1536 else 1024  # noqa: PLR2004 - llm.c's rule
        columns = -(-channels // 64)
        rows = max(1, shape.threads_per_sm * shape.sm_count // (block * columns))
        if rows > 1:
            self.memory(
                section,
                f"reduce_add_sum_kernel {suffix}",
                f"{channels}x{rows}",
                flops=channels * rows,
                moved=_FP32 * channels * rows + 2 * _BF16 * channels,
            )

    def _add(
        self, section: str, name: str, kind: Kind, size: str, flops: float, moved: float
    ) -> None:
        per_layer = section in {"Lf", "Lb"}
        self.kernels.append(
            Kernel(
                name=name,
                kind=kind,
                pass_=_PASS_OF_SECTION[section],
                section=section,
                shape=size,
                count=self.shape.layers if per_layer else 1,
                flops=float(flops),
                bytes_moved=float(moved),
            )
        )


def _forward(add: _Builder) -> None:
    s = add.shape
    p = s.tp
    b, t, c = s.batch, s.sequence, s.hidden
    heads, v, head = s.heads // p, s.padded_vocabulary // p, c // s.heads
    n = b * t
    own = n // p  # tokens of this GPU where the sequence is sharded
    nc = own * c  # elements of a tensor that is sharded, whichever way
    norm_stats = 2 * _FP32 * own  # mean and reciprocal deviation of each token
    causal = b * heads * t * (t + 1) // 2  # attention scores on and below the diagonal
    # A GPU finds the tokens of its part of the vocabulary, and writes zeros for all others.
    embed = _BF16 * (nc + n * c + t * c // p) + _INT32 * n
    add.memory("fwd", "encoder_forward_kernel3", f"{n}x{c}", flops=nc, moved=embed)
    add.memory(
        "fwd",
        "layernorm_forward_kernel6",
        f"{own}x{c}",
        flops=8 * nc,
        moved=2 * _BF16 * nc + norm_stats,
    )
    add.gemm("Lf", "qkv", 3 * c // p, n, c)
    add.memory("Lf", "permute_kernel", f"{n}x3C{s.part}", flops=0, moved=6 * _BF16 * nc)
    add.batched("Lf", "bgemm QK^T", t, t, head)
    add.memory(
        "Lf",
        "softmax_forward_kernel5",
        f"{b * heads}x{t}x{t} causal",
        flops=5 * causal,
        moved=2 * _BF16 * causal,
    )
    add.batched("Lf", "bgemm att.V", head, t, t)
    add.memory("Lf", "unpermute_kernel", f"{n}xC{s.part}", flops=0, moved=2 * _BF16 * nc)
    add.gemm("Lf", "attproj", c, n, c // p)
    residual = {"flops": 9 * nc, "moved": 4 * _BF16 * nc + norm_stats}
    add.memory("Lf", "fused_residual_forward_kernel5 (ln2)", f"{own}xC", **residual)
    add.gemm("Lf", "fc", 4 * c // p, n, c)
    add.memory("Lf", "gelu_forward_kernel2", f"{n}x4C{s.part}", flops=32 * nc, moved=8 * _BF16 * nc)
    add.gemm("Lf", "fcproj", c, n, 4 * c // p)
    add.memory("Lf", "fused_residual_forward_kernel5 (ln1/lnf)", f"{own}xC", **residual)
    add.gemm("fwd", "lm_head", v, n, c)
    add.memory(
        "loss", "fused_classifier_kernel5", f"{n}x{v}", flops=6 * n * v, moved=3 * _BF16 * n * v
    )


def _backward(add: _Builder) -> None:
    s = add.shape
    p = s.tp
    b, t, c = s.batch, s.sequence, s.hidden
    heads, v, head = s.heads // p, s.padded_vocabulary // p, c // s.heads
    n = b * t
    own = n // p
    nc = own * c
    causal = b * heads * t * (t + 1) // 2
    add.gemm("bwd", "lm_head dgrad", c, n, v)
    add.gemm("bwd", "lm_head wgrad", c, v, n, accumulate=True)
    norm = {"flops": 12 * nc, "moved": 4 * _BF16 * nc}
    add.memory("bwd", "layernorm_backward_kernel10 (lnf)", f"{own}xC", **norm)
    add.memory(
        "Lb",
        "gelu_forward_kernel2 (recompute=1)",
        f"{n}x4C{s.part}",
        flops=32 * nc,
        moved=8 * _BF16 * nc,
    )
    add.bias_backward("Lb", "fcproj", own, c)
    add.gemm("Lb", "fcproj dgrad", 4 * c // p, n, c)
    add.memory(
        "Lb",
        "gelu_backward_inplace_kernel",
        f"{n}x4C{s.part}",
        flops=64 * nc,
        moved=12 * _BF16 * nc,
    )
    add.gemm("Lb", "fcproj wgrad", 4 * c // p, c, n, accumulate=True)
    add.bias_backward("Lb", "fc", n, 4 * c // p)
    add.gemm("Lb", "fc dgrad", c, n, 4 * c // p)
    add.gemm("Lb", "fc wgrad", c, 4 * c // p, n, accumulate=True)
    add.memory("Lb", "layernorm_backward_kernel10 (ln2)", f"{own}xC", **norm)
    add.bias_backward("Lb", "attproj", own, c)
    add.gemm("Lb", "attproj dgrad", c // p, n, c)
    add.gemm("Lb", "attproj wgrad", c // p, c, n, accumulate=True)
    add.memory("Lb", "unpermute_kernel_backward", f"{n}xC{s.part}", flops=0, moved=2 * _BF16 * nc)
    add.batched("Lb", "bgemm datt", t, t, head)
    add.batched("Lb", "bgemm dv", head, t, t)
    # Reads scores and gradients below the diagonal, writes the full square with zeros above it.
    add.memory(
        "Lb",
        "softmax_autoregressive_backward_inplace_kernel",
        f"{b * heads}x{t}x{t}",
        flops=4 * causal,
        moved=_BF16 * (2 * causal + b * heads * t * t),
    )
    add.batched("Lb", "bgemm dq", head, t, t)
    add.batched("Lb", "bgemm dk", head, t, t)
    add.memory("Lb", "permute_kernel_backward", f"{n}x3C{s.part}", flops=0, moved=6 * _BF16 * nc)
    add.bias_backward("Lb", "qkv", n, 3 * c // p)
    add.gemm("Lb", "qkv dgrad", c, n, 3 * c // p)
    add.gemm("Lb", "qkv wgrad", c, 3 * c // p, n, accumulate=True)
    add.memory("Lb", "layernorm_backward_kernel10 (ln1)", f"{own}xC", **norm)
    positions = _BF16 * (nc + 2 * t * c // p)
    add.memory("bwd", "wpe_backward_kernel", f"{t // p}xC", flops=nc, moved=positions)
    add.memory(
        "bwd", "wte_backward_kernel", f"{own}xC gather-scatter", flops=nc, moved=3 * _BF16 * nc
    )


def _optimizer(add: _Builder) -> None:
    p = add.shape.rank_parameters
    add.memory("opt", "global_norm_squared_kernel", str(p), flops=2 * p, moved=_BF16 * p)
    # Reads gradient, master weight and both moments, writes the last three and the weight.
    add.memory("opt", "adamw_kernel3 (16 launches)", str(p), flops=15 * p, moved=28 * p)


def _launch_order(kernels: list[Kernel], layers: int) -> tuple[int, ...]:
    """Repeat each run of per-layer kernels once per layer, where it stands."""
    order: list[int] = []
    index = 0
    while index < len(kernels):
        end = index + 1
        if kernels[index].section in {"Lf", "Lb"}:
            while kernels[end].section == kernels[index].section:
                end += 1
            order.extend(list(range(index, end)) * layers)
        else:
            order.append(index)
        index = end
    return tuple(order)


def gpt3_step(name: str, shape: Shape) -> Step:
    """Return one GPU's part of one training step, optimizer included, in launch order."""
    add = _Builder(shape)
    _forward(add)
    _backward(add)
    _optimizer(add)
    return Step(
        name=name,
        kernels=tuple(add.kernels),
        order=_launch_order(add.kernels, shape.layers),
        parameters=shape.as_parameters(),
    )
