"""A training script as people write them: ``python studies/zoo/train.py --steps 100``."""

import argparse

import torch
from ordinary import BATCH, TOKENS, WORDS, Model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train on random tokens; print the loss of every step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-4)
    asked = parser.parse_args()
    torch.manual_seed(0)
    tokens = torch.randint(WORDS, (2, 128 * BATCH, TOKENS))
    loader = DataLoader(
        TensorDataset(tokens[0], tokens[1]),
        batch_size=BATCH,
        shuffle=True,
        num_workers=2,
        pin_memory=True,
    )
    model = Model(dropout=0.1).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, asked.lr, total_steps=asked.steps)
    scaler = torch.amp.GradScaler("cuda")
    taken = 0
    while taken < asked.steps:
        for batch, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(
                    batch.to("cuda", non_blocking=True), targets.to("cuda", non_blocking=True)
                )
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            taken += 1
            print(f"step {taken}: loss {loss.item().hex()}", flush=True)
            if taken == asked.steps:
                break


if __name__ == "__main__":
    main()
