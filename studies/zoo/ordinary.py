"""Training steps as people write them, one function each: ``studies/zoo/ordinary.py:stock``.

Nothing here knows that it will be captured: optimisers are PyTorch's defaults, numbers are read,
shapes depend on data, batches come from a loader.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, HEADS, LAYERS, TOKENS, BATCH, WORDS = 1024, 16, 6, 512, 16, 16384
IMAGES, PIXELS, FEATURES = 128, 224, (64, 128, 256, 512)
Step = Callable[[], object]


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, *, dropout: float = 0.0, experts: int = 0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = Experts(experts) if experts else mlp()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_btc: torch.Tensor) -> torch.Tensor:
        """Add attention's and the MLP's part to the residual stream."""
        b, t, c = x_btc.shape
        q, k, v = (
            part.view(b, t, HEADS, c // HEADS).transpose(1, 2)
            for part in self.qkv(self.norm1(x_btc)).split(c, dim=2)
        )
        y_bhtd = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_btc = x_btc + self.dropout(self.out(y_bhtd.transpose(1, 2).reshape(b, t, c)))
        out: torch.Tensor = x_btc + self.dropout(self.mlp(self.norm2(x_btc)))
        return out


class Experts(nn.Module):
    """A mixture of experts: each token goes to the best of them, found with ``nonzero``."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        self.experts = nn.ModuleList(mlp() for _ in range(experts))

    def forward(self, x_btc: torch.Tensor) -> torch.Tensor:
        """Return what the chosen experts say of each token."""
        flat = x_btc.reshape(-1, x_btc.shape[-1])
        weights, chosen = self.router(flat).softmax(dim=-1).max(dim=-1)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            (mine,) = (chosen == index).nonzero(as_tuple=True)
            said = expert(flat[mine]) * weights[mine, None]
            out = out.index_add(0, mine, said.to(out.dtype))
        return out.view_as(x_btc)


class Model(nn.Module):
    """A language model."""

    def __init__(self, **block: Any) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block(**block) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(logits.view(-1, WORDS), targets.view(-1))


class Network(nn.Module):
    """A small convolutional one."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, *FEATURES)
        self.layers = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(a, b, 3, stride=2, padding=1, bias=False),
                    nn.BatchNorm2d(b),
                    nn.ReLU(),
                    nn.Conv2d(b, b, 3, padding=1, bias=False),
                    nn.BatchNorm2d(b),
                    nn.ReLU(),
                )
                for a, b in pairwise(widths)
            )
        )
        self.head = nn.Linear(widths[-1], 1000)

    def forward(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return functional.cross_entropy(self.head(self.layers(images).mean((2, 3))), targets)


class Recurrent(nn.Module):
    """An LSTM over words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        logits = self.head(self.lstm(self.words(tokens))[0])
        return functional.cross_entropy(logits.view(-1, WORDS), targets.view(-1))


class LowRank(nn.Module):
    """A frozen linear layer with a trained one of low rank beside it."""

    def __init__(self, frozen: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(requires_grad=False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add both."""
        out: torch.Tensor = self.frozen(x) + self.up(self.down(x))
        return out


def mlp() -> nn.Sequential:
    """Return a transformer's."""
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def words(batch: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random tokens and targets, each of shape (batch, tokens)."""
    tokens = torch.randint(WORDS, (2, batch, TOKENS), device=DEVICE)
    return tokens[0], tokens[1]


@cache
def _stock() -> Step:
    torch.manual_seed(0)
    model, data = Model().to(DEVICE), words()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(*data)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        kept: torch.Tensor = loss.detach()
        return kept

    return step


@cache
def _scaled() -> Step:
    torch.manual_seed(0)
    model, data = Model().to(DEVICE), words()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(DEVICE)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = model(*data)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        kept: torch.Tensor = loss.detach()
        return kept

    return step


def _for_ever(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


@cache
def _loaded() -> Step:
    torch.manual_seed(0)
    model = Model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(WORDS, (2, 4096, TOKENS))
    loader = DataLoader(
        TensorDataset(tokens[0], tokens[1]),
        batch_size=BATCH,
        num_workers=2,
        pin_memory=torch.cuda.is_available(),
    )
    batches = _for_ever(loader)

    def step() -> torch.Tensor:
        batch, targets = next(batches)
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(batch.to(DEVICE, non_blocking=True), targets.to(DEVICE, non_blocking=True))
        loss.backward()
        optimizer.step()
        kept: torch.Tensor = loss.detach()
        return kept

    return step


def _plain_step(
    model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], *, reads: bool = False
) -> Step:
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    losses: list[float] = []

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(*data)
        loss.backward()
        optimizer.step()
        if reads:
            losses[:] = [loss.item()]
        kept: torch.Tensor = loss.detach()
        return kept

    return step


@cache
def _compiled() -> Step:
    torch.manual_seed(0)
    model: Any = torch.compile(Model().to(DEVICE))
    return _plain_step(model, words(), reads=True)


@cache
def _dropping() -> Step:
    torch.manual_seed(0)
    return _plain_step(Model(dropout=0.1).to(DEVICE), words())


@cache
def _reading() -> Step:
    torch.manual_seed(0)
    return _plain_step(Model().to(DEVICE), words(), reads=True)


@cache
def _convolving() -> Step:
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    model, images = Network().to(DEVICE), torch.randn(IMAGES, 3, PIXELS, PIXELS, device=DEVICE)
    targets = torch.randint(1000, (IMAGES,), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(images, targets)
        loss.backward()
        optimizer.step()
        kept: torch.Tensor = loss.detach()
        return kept

    return step


@cache
def _mixing() -> Step:
    torch.manual_seed(0)
    return _plain_step(Model(experts=8).to(DEVICE), words())


@cache
def _low_rank() -> Step:
    torch.manual_seed(0)
    model: Any = Model()
    model.requires_grad_(requires_grad=False)
    for block in model.blocks:
        block.qkv, block.out = LowRank(block.qkv), LowRank(block.out)
    return _plain_step(model.to(DEVICE), words())


@cache
def _recurring() -> Step:
    torch.manual_seed(0)
    return _plain_step(Recurrent().to(DEVICE), words(64))


@cache
def _accumulating() -> Step:
    torch.manual_seed(0)
    model, data = Model().to(DEVICE), words()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> torch.Tensor:
        total = 0.0
        for part in range(4):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = model(*(half[4 * part : 4 * part + 4] for half in data)) / 4
            loss.backward()
            total += float(loss.detach())
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):
            optimizer.step()
        optimizer.zero_grad()
        kept: torch.Tensor = loss.detach()
        return kept

    return step


def stock() -> object:
    """Autocast, clipping, AdamW as it comes, a scheduler."""
    return _stock()()


def scaled() -> object:
    """Half precision with a gradient scaler."""
    return _scaled()()


def loaded() -> object:
    """Batches from a loader with workers and pinned memory."""
    return _loaded()()


def compiled() -> object:
    """Compile the model; read the loss."""
    return _compiled()()


def dropping() -> object:
    """Use dropout."""
    return _dropping()()


def reading() -> object:
    """Read the loss on the host."""
    return _reading()()


def convolving() -> object:
    """Run convolutions, for which cuDNN tries its algorithms."""
    return _convolving()()


def mixing() -> object:
    """Run a mixture of experts."""
    return _mixing()()


def low_rank() -> object:
    """Train only layers of low rank."""
    return _low_rank()()


def recurring() -> object:
    """Run an LSTM."""
    return _recurring()()


def accumulating() -> object:
    """Accumulate over four micro-batches; step only if the gradient is finite."""
    return _accumulating()()
