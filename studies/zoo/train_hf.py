"""A script around the Trainer of the transformers library; nothing is downloaded."""

import tempfile
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

WORDS, TOKENS = 16384, 512


class Tokens(Dataset[Any]):
    """Random ones."""

    def __init__(self) -> None:
        self.tokens = torch.randint(WORDS, (4096, TOKENS))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=TOKENS,
        use_cache=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=16,
            max_steps=60,
            bf16=True,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            dataloader_num_workers=2,
        )
        Trainer(LlamaForCausalLM(config), arguments, train_dataset=Tokens()).train()


if __name__ == "__main__":
    main()
