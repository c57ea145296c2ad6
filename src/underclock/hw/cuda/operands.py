"""What a step and its kernels read and write, and whether that is fit to measure on.

Zeros draw far less power than random numbers: on one matrix product 424 W against 752 W (H200,
measured by us). So what a step is fed, and what a kernel reads, must not be constant, and must not
become so when the kernel runs over and over on its own output.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from underclock.errors import MeasurementError
from underclock.hw.cuda.round_graphs import GraphNode
from underclock.hw.cuda.state import holders, live_tensors, plain, wraps_others

_WINDOW = 2**20  # bytes looked at behind each pointer
_LEAST_WINDOW = 2**18  # a smaller stretch is not worth an opinion: a bias, a few scalars
_SAMPLED = 2**16
_UNIFORM = 0.999
_LEAST_ELEMENTS = 4096  # smaller inputs decide no kernel's power


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The device memory that PyTorch's allocator holds."""

    # Start and end addresses of what it has from the driver, ascending
    stretches: tuple[tuple[int, int], ...]
    starts: NDArray[np.uint64]  # of every allocation known, those since freed included. Shape (A,).
    ends: NDArray[np.uint64]  # of the same allocations. Shape (A,).

    @classmethod
    def of(cls, torch: Any, device: int, allocations: Iterable[tuple[int, int]] = ()) -> Self:
        """Look at what is held now."""
        stretches, known = [], list(allocations)
        for segment in torch.cuda.memory_snapshot():
            if segment["device"] != device:
                continue
            start = int(segment["address"])
            stretches.append((start, start + int(segment["total_size"])))
            known += [
                (int(block["address"]), int(block["size"]))
                for block in segment["blocks"]
                if block["state"] == "active_allocated"
            ]
        return cls(
            stretches=tuple(sorted(stretches)),
            starts=np.array([start for start, _ in known], dtype=np.uint64),
            ends=np.array([start + size for start, size in known], dtype=np.uint64),
        )

    def holds(self, address: int) -> bool:
        """Whether an address lies in any stretch."""
        at = bisect_right(self.stretches, (address, 2**64)) - 1
        return at >= 0 and address < self.stretches[at][1]

    def extent(self, address: int) -> int:
        """Return how many bytes behind an address surely belong to one allocation; 0 for none.

        A capture reuses addresses, so of several allocations the one that ends first counts.
        """
        if not self.holds(address):
            return 0
        inside = (self.starts <= address) & (address < self.ends)
        return int(self.ends[inside].min()) - address if inside.any() else 0


class _Raw:
    """Device memory by address, in the form in which PyTorch takes another library's arrays."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size // 2,),
            "typestr": "<i2",
            "data": (address, False),
            "version": 3,
        }


def windows(torch: Any, memory: Memory, words: Sequence[int]) -> list[Any]:
    """Return views of what a kernel's pointers point at, each address once."""
    views = []
    for address in dict.fromkeys(words):
        size = min(_WINDOW, memory.extent(address)) // 2 * 2
        if size >= _LEAST_WINDOW and address % 2 == 0:
            views.append(torch.as_tensor(_Raw(address, size), device="cuda"))
    return views


def uniformity(view: Any) -> float:
    """Return the share of a window's 2-byte words that are its most common one."""
    step = max(1, view.numel() // _SAMPLED)
    words = view[::step]
    _, counts = words.unique(return_counts=True)
    return float(counts.max()) / float(words.numel())


def is_constant(view: Any) -> bool:
    """Whether a window holds one value only, zero or other."""
    return uniformity(view) >= _UNIFORM


def candidates(torch: Any) -> list[Any]:
    """Return the GPU's floating-point tensors, before the capture, of no model or optimizer."""
    theirs: list[Any] = []
    for thing in holders(torch):
        if isinstance(thing, torch.nn.Module):
            theirs += [*thing.parameters(), *thing.buffers()]
        elif isinstance(thing, torch.optim.Optimizer):
            values = [value for state in thing.state.values() for value in state.values()]
            theirs += [value for value in values if torch.is_tensor(value)]
    alive = [tensor for tensor in live_tensors(torch) if tensor.is_cuda]
    theirs += [tensor.grad for tensor in alive if tensor.is_leaf and tensor.grad is not None]
    owned = {part.data_ptr() for tensor in theirs for part in plain(torch, tensor)}
    return [
        tensor
        for tensor in alive
        if not wraps_others(torch, tensor)
        and tensor.is_floating_point()
        and tensor.numel() >= _LEAST_ELEMENTS
        and tensor.is_leaf
        and not tensor.requires_grad
        and tensor.data_ptr() not in owned
    ]


def check_inputs(tensors: Sequence[Any], nodes: Sequence[GraphNode]) -> None:
    """Refuse a step that reads an input which holds one value only."""
    pointers = {word for node in nodes for word in node.words}
    for tensor in tensors:
        start = tensor.data_ptr()
        end = start + tensor.untyped_storage().nbytes()
        if not any(start <= pointer < end for pointer in pointers):
            continue
        first = tensor.reshape(-1)[0]
        if bool((tensor == first).all()):
            raise MeasurementError(
                f"the step reads an input of shape {'x'.join(map(str, tensor.shape))} in "
                f"which every number is {float(first) + 0.0:g}; a GPU draws far less power on "
                "that than on real data",
                hint="feed the step data as in training, or random numbers",
            )
