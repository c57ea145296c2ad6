"""A model of the transformers library, built from a configuration: no weights are downloaded."""

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def _built(width: int, layers: int, batch: int) -> Callable[[], None]:
    import torch  # noqa: PLC0415 - the user's own
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - the user's own

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 128,
        max_position_embeddings=1024,
        use_cache=False,
    )
    with torch.device("cuda"):
        model: Any = LlamaForCausalLM(config).to(torch.bfloat16)
        tokens = torch.randint(config.vocab_size, (batch, 1024))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True, capturable=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step


def llama() -> None:
    """Run one training step of a small Llama."""
    _built(width=1024, layers=8, batch=16)()


def tiny_llama() -> None:
    """Run one that fits anywhere."""
    _built(width=128, layers=2, batch=2)()
