"""A model of the transformers library, built from a configuration: no weights are downloaded."""

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def _built() -> Callable[[], None]:
    import torch  # noqa: PLC0415 - the user's own
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - the user's own

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=1024,
        use_cache=False,
    )
    with torch.device("cuda"):
        model: Any = LlamaForCausalLM(config).to(torch.bfloat16)
        tokens = torch.randint(config.vocab_size, (16, 1024))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True, capturable=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step


def llama() -> None:
    """Run one training step of a small Llama."""
    _built()()
