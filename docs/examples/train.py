"""A training script that knows nothing of Underclock: two layers learn to copy what they are given.

``python train.py --steps 60`` trains on a GPU where there is one, else on the CPU.
"""

import argparse

import torch
from torch import nn


def main() -> None:
    """Train, and say the loss now and then."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(
        nn.LayerNorm(512), nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        x = torch.randn(1024, 512, device=device)
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
