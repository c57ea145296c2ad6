"""Steps of serving Llama 3, as a server launches them: fused norms, grouped queries, SwiGLU.

Shape letters: B sequences, T tokens of a prompt, N tokens of the step, C hidden, H heads, K heads
of keys and values, D = C / H, I intermediate, V vocabulary, S context of a sequence. Weights,
activations and the cache are bf16.

Decode makes one token of each sequence (N = B), whose attention reads keys and values of S tokens
each. Prefill reads B prompts whole (N = B·T, T = S). A mixed step has the tokens of a decode and a
chunk of one prompt in the same launches (N = B + chunk), as with chunked prefill; the attention of
the two is launched apart.

Bytes are the least DRAM traffic: weights, cache and activations counted once. FLOPs of a product
are 2·m·n·k; attention's are those of its two products, of a prompt on and below the diagonal only.
"""

from dataclasses import dataclass

from underclock.records import SERVING, Kind, Pass, Step
from underclock.workloads.gpt3 import BF16, KernelWriter, ModelShape

_INT64 = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedShape(ModelShape):
    """Sizes of a step of serving."""

    kv_heads: int
    intermediate: int
    vocabulary: int = 128256
    phase: Pass
    batch: int = 8  # sequences of a step
    context: int = 1024  # tokens that each of them attends to; of prefill, the length of a prompt
    chunk: int = 512  # tokens of a prompt in a mixed step

    def __post_init__(self) -> None:
        for name in self.names():
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.hidden % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"hidden {self.hidden}, heads {self.heads} and kv_heads {self.kv_heads} must "
                "divide one another"
            )
        if self.phase is Pass.MIXED and self.chunk > self.context:
            raise ValueError(f"a chunk of {self.chunk} exceeds the context {self.context}")

    def as_parameters(self) -> dict[str, int]:
        """Return every size by name; of a chunk only where there is one."""
        sizes = {name: getattr(self, name) for name in self.names()}
        if self.phase is not Pass.MIXED:
            del sizes["chunk"]
        return sizes

    @property
    def tokens(self) -> int:
        """Tokens that run through the layers."""
        if self.phase is Pass.PREFILL:
            return self.batch * self.context
        return self.batch + (self.chunk if self.phase is Pass.MIXED else 0)

    def step(self, name: str) -> Step:
        """Return one step of serving, in launch order; its name says its sizes."""
        add, n, c = _Writer(self), self.tokens, self.hidden
        made = self.batch + (self.phase is Pass.MIXED)  # tokens whose successors are asked for
        add.section = "head"
        add.memory("embedding", f"{n}x{c}", 0, 2 * BF16 * n * c + _INT64 * n)
        _layer(add)
        add.section = "head"
        add.norm("rms_norm head", residual=True)
        add.gemm("lm_head", self.vocabulary, made, c)
        logits = made * self.vocabulary
        add.memory("sample", f"{made}x{self.vocabulary}", logits, BF16 * logits + _INT64 * made)
        sized = f"{name}-b{self.batch}-c{self.context}" + f"-t{n}" * (self.phase is Pass.MIXED)
        return add.step(sized, self.as_parameters())


# arXiv 2407.21783, table 3.
_MODELS = {
    "llama3-8b": {"layers": 32, "hidden": 4096, "heads": 32, "intermediate": 14336},
    "llama3-70b": {"layers": 80, "hidden": 8192, "heads": 64, "intermediate": 28672},
}
MODELS = {
    f"{name}-{phase}": ServedShape(
        **sizes, kv_heads=8, phase=phase, batch=1 if phase is Pass.PREFILL else 8
    )
    for name, sizes in _MODELS.items()
    for phase in SERVING
}


class _Writer(KernelWriter):
    """Writes down a step of serving; one method per kind of kernel."""

    def __init__(self, shape: ServedShape) -> None:
        super().__init__(shape.layers, dict.fromkeys(("head", "layer"), shape.phase), {"layer"})
        self.shape = shape

    def norm(self, name: str, *, residual: bool) -> None:
        """Add an RMSNorm, with the residual added before where there is one."""
        n, c = self.shape.tokens, self.shape.hidden
        self.memory(name, f"{n}x{c}", 5 * n * c, BF16 * n * c * (4 if residual else 2))

    def attention(self, name: str, sequences: int, tokens: int, context: int) -> None:
        """Add the attention of the last tokens of some sequences, each to all before it."""
        s = self.shape
        width = s.hidden // s.heads
        seen = sequences * (tokens * context - tokens * (tokens - 1) // 2)  # pairs of tokens
        cache = 2 * sequences * context * s.kv_heads * width
        size = f"{sequences}x{tokens}x{context}"
        moved = BF16 * (cache + 2 * sequences * tokens * s.hidden)
        kind = Kind.MEMORY if tokens == 1 else Kind.GEMM
        self.add(name, kind, size, 4.0 * seen * s.hidden, moved)


def _layer(add: _Writer) -> None:
    s = add.shape
    n, c, width = s.tokens, s.hidden, s.hidden // s.heads
    keys = s.kv_heads * width
    add.section = "layer"
    add.norm("rms_norm attention", residual=True)
    add.gemm("qkv", c + 2 * keys, n, c)
    # Reads queries, keys and values, writes the queries turned, and the rest to the cache.
    turned = n * (c + keys)
    add.memory("rope and cache", f"{n}x{c + 2 * keys}", 6 * turned, 2 * BF16 * n * (c + 2 * keys))
    if s.phase is Pass.PREFILL:
        add.attention("attention of prompts", s.batch, s.context, s.context)
    else:
        add.attention("attention of tokens", s.batch, 1, s.context)
    if s.phase is Pass.MIXED:
        add.attention("attention of a chunk", 1, s.chunk, s.context)
    add.gemm("out", c, n, c)
    add.norm("rms_norm mlp", residual=True)
    add.gemm("gate and up", 2 * s.intermediate, n, c)
    wide = n * s.intermediate
    add.memory("silu and multiply", f"{n}x{s.intermediate}", 6 * wide, 3 * BF16 * wide)
    add.gemm("down", c, n, s.intermediate)
