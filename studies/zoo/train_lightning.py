"""A script around Lightning's Trainer."""

from typing import Any

import lightning
import torch
from ordinary import BATCH, TOKENS, WORDS, Model
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):  # type: ignore[misc]
    """A language model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch: Any, _index: int) -> torch.Tensor:
        """Return the loss, and log it."""
        loss: torch.Tensor = self.model(*batch)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Use AdamW as it comes."""
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


def main() -> None:
    """Train for some steps."""
    lightning.seed_everything(0)
    tokens = torch.randint(WORDS, (2, 128 * BATCH, TOKENS))
    loader = DataLoader(TensorDataset(tokens[0], tokens[1]), batch_size=BATCH, num_workers=2)
    trainer = lightning.Trainer(
        max_steps=60,
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        devices=1,
    )
    trainer.fit(Module(), loader)


if __name__ == "__main__":
    main()
