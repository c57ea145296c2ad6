"""Sizes of a GPT-3 model, of one training step of it, and of one GPU's share of that step."""

import dataclasses
from dataclasses import dataclass

from underclock.errors import UsageError
from underclock.units import nearest

_VOCABULARY_ALIGNMENT = 128  # llm.c pads the vocabulary so that GEMM shapes stay aligned


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
        """Reject sizes that make no transformer, or that do not divide among the GPUs."""
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
            raise UsageError(f"no parameter named {unknown[0]!r}", hint=nearest(unknown[0], SIZES))
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
