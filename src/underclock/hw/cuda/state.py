"""What a training step changes, kept and put back bit by bit; and whether what it reads is fit.

A step changes the contents of tensors, what optimizers and modules hold, gradients, and the state
of random generators. All of them are found by looking at what is alive, so that a user's function
needs to declare nothing.

What a step reads from outside cannot be put back. So a step that is run over and over is fed the
same batches each time, and none is lost to it: what it took from a data loader is given to it again
on every try; and once all is done, to the next one to take from that loader, before anything new.

Zeros draw far less power than random numbers: on one matrix product 424 W against 752 W (H200,
measured by us). So what a step is fed, and what a kernel reads, must not be constant, and must not
become so when the kernel runs over and over on its own output.
"""

import gc
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from inspect import unwrap
from types import FunctionType, SimpleNamespace
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from underclock.errors import MeasurementError, StuckError
from underclock.hw.cuda.driver import wait_for_gpu
from underclock.hw.cuda.round_graphs import GraphNode

_SMALL = 64 * 2**20
_MOST_OF_FREE = 0.25  # the rest is for what the step and its capture allocate
_SIMPLE = (int, float, bool, str, bytes, type(None))


class Snapshot:
    """Everything a step may change, as it was when this was made.

    Tensors of a GPU are kept on it where the room allows, in the host's memory otherwise. Simple
    variables of the function that will run are kept as well. What a snapshot of an earlier moment
    holds of a tensor is held here too, for two copies of a large model fit nowhere.
    """

    def __init__(
        self, step: Callable[..., object] | None = None, known: "Snapshot | None" = None
    ) -> None:
        import torch  # noqa: PLC0415 - the user's own

        self._torch = torch
        # Dictionaries and lists, by identity: each, and what it held.
        self._containers: dict[int, tuple[Any, Any]] = {}
        for thing in holders(torch):
            self._keep(vars(thing))
        tensors = live_tensors(torch)
        leaves = [t for t in tensors if t.is_leaf and t.requires_grad]
        self._gradients = [(leaf, leaf.grad) for leaf in leaves]
        self.contents: list[tuple[Any, Any]] = _contents(
            torch, tensors, known.contents if known else ()
        )
        function = unwrap(getattr(step, "__func__", step)) if callable(step) else None
        # What puts variables and random generators back, and their state.
        self._rest: list[tuple[Callable[[Any], object], Any]] = []
        owner: object = step
        if isinstance(function, FunctionType):
            # Simple variables that it may count in: its module's, and enclosed ones.
            variables = function.__globals__
            simple = {name: v for name, v in variables.items() if isinstance(v, _SIMPLE)}
            self._rest.append((variables.update, simple))
            for cell in function.__closure__ or ():
                with suppress(ValueError):  # not filled yet
                    if isinstance(cell.cell_contents, _SIMPLE):
                        fill = partial(setattr, cell, "cell_contents")
                        self._rest.append((fill, cell.cell_contents))
            owner = getattr(step, "__self__", None)
        # A method counts in its object, and an object that is called in itself.
        if hasattr(owner, "__dict__"):
            self._keep(vars(owner))
        self._rest += [
            (random.setstate, random.getstate()),
            (np.random.set_state, np.random.get_state()),  # noqa: NPY002 - what a step may use
            (torch.set_rng_state, torch.get_rng_state()),
        ]
        if torch.cuda.is_available():
            self._rest.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))

    def _keep(self, value: object) -> None:
        """Keep what a container holds, and what those in it hold; anything else is passed over."""
        if not isinstance(value, dict | list) or id(value) in self._containers:
            return
        held = dict(value) if isinstance(value, dict) else list(value)
        self._containers[id(value)] = value, held
        for inner in held.values() if isinstance(held, dict) else held:
            self._keep(inner)

    def move_to_host(self) -> bool:
        """Make room on the GPU; return whether there was any to make."""
        moved = [copy.is_cuda for _, copy in self.contents]
        for index, (storage, copy) in enumerate(self.contents):
            self.contents[index] = (storage, copy.cpu())
        return any(moved)

    def restore_contents(self) -> None:
        """Put back what tensors held, and nothing else: as before a kernel that is measured."""
        with self._torch.no_grad():
            for storage, copy in self.contents:
                if storage.untyped_storage().nbytes() >= copy.nbytes:  # else the step gave it back
                    storage.copy_(copy)

    def restore(self) -> None:
        """Put everything back, once the GPU has done what it was given."""
        if self._torch.cuda.is_available():
            wait_for_gpu(self._torch)
        for value, held in self._containers.values():
            value.clear()
            if isinstance(value, dict):
                for key, inner in held.items():
                    value[key] = inner
            else:
                value.extend(held)
        for leaf, gradient in self._gradients:
            leaf.grad = gradient
        self.restore_contents()
        for put_back, state in self._rest:
            put_back(state)


@contextmanager
def preserved(step: Callable[..., object] | None = None) -> Iterator[Snapshot]:
    """Leave parameters, optimizers, gradients, buffers and random generators as they were."""
    snapshot = Snapshot(step)
    with finally_unless_stuck(snapshot.restore):
        yield snapshot


@contextmanager
def finally_unless_stuck(undo: Callable[[], None]) -> Iterator[None]:
    """Undo however the block ends, but where the GPU is stuck: to wait for it would be forever."""
    try:
        yield
    except StuckError:
        raise
    except BaseException:
        undo()
        raise
    undo()


def _alive(kinds: tuple[type, ...]) -> list[Any]:
    gc.collect()
    # Not isinstance: a lazy proxy's __class__ may run code, or raise.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]


def holders(torch: Any) -> list[Any]:
    """Return every module, optimizer, scheduler and gradient scaler."""
    optim = torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler
    return _alive((torch.nn.Module, *optim, torch.amp.GradScaler))


def live_tensors(torch: Any) -> list[Any]:
    """Return every tensor that is alive and holds numbers."""
    fakes = {"FakeTensor", "FunctionalTensor"}
    return [
        thing
        for thing in _alive((torch.Tensor,))
        if thing.layout is torch.strided
        and thing.device.type != "meta"
        and type(thing).__name__ not in fakes
    ]


def wraps_others(torch: Any, tensor: Any) -> bool:
    """Whether a tensor's numbers are held by other tensors."""
    dispatch = torch.utils._python_dispatch  # noqa: SLF001 - there is no other way to ask
    return bool(dispatch.is_traceable_wrapper_subclass(tensor))


def plain(torch: Any, tensor: Any) -> Iterator[Any]:
    """Yield what holds a tensor's numbers: itself, or those that it wraps, as a DTensor does."""
    if not wraps_others(torch, tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if torch.is_tensor(part):  # some name what else they are made of
            yield from plain(torch, part)


def _contents(
    torch: Any, tensors: Sequence[Any], known: Sequence[tuple[Any, Any]]
) -> list[tuple[Any, Any]]:
    """Copy what every tensor's storage holds, each storage once, as bytes."""
    # Of the host's tensors only those are copied that a step is likely to write: of modules and
    # optimizers, and small ones. A data set in the host's memory is not.
    kept = list(known)
    copied = {(str(whole.device), whole.data_ptr()) for whole, _ in known}
    seen: dict[tuple[str, int], tuple[Any, int]] = {}
    for tensor in (each for some in tensors for each in plain(torch, some)):
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if not size or (str(storage.device), storage.data_ptr()) in copied:
            continue
        if tensor.is_cuda or tensor.requires_grad or size <= _SMALL:
            seen.setdefault((str(storage.device), storage.data_ptr()), (storage, size))
    on_gpu = torch.cuda.is_available()
    if on_gpu:  # through the host a copy takes seconds to put back
        torch.cuda.empty_cache()  # or what earlier steps left would count as taken
        free, _ = torch.cuda.mem_get_info()
        wanted = sum(size for storage, size in seen.values() if storage.device.type == "cuda")
        on_gpu = wanted <= _MOST_OF_FREE * free
    for storage, _ in seen.values():
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        kept.append((whole, whole.clone() if on_gpu or not whole.is_cuda else whole.cpu()))
    return kept


class Batches:
    """What was taken from the iterators of PyTorch's data loaders."""

    def __init__(self, kind: type) -> None:
        """Stand between the iterators of this class and those who take from them."""
        self._kind = kind
        self._next: Any = kind.__next__  # type: ignore[attr-defined]
        self._taken: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
        self._given: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._ended = False

        def give(iterator: Any) -> Any:  # a function, for a class makes methods of those only
            return self._give(iterator)

        kind.__next__ = give  # type: ignore[attr-defined]

    def rewind(self) -> None:
        """Begin again with the first batch taken."""
        self._given.clear()

    def end(self) -> None:
        """Give what was taken once more, then step aside."""
        self.rewind()
        self._ended = True
        self._step_aside()

    def _give(self, iterator: Any) -> Any:
        taken = self._taken.setdefault(iterator, [])
        if self._ended:
            if not taken:
                return self._next(iterator)
            batch = taken.pop(0)
            self._step_aside()
            return batch
        given = self._given.get(iterator, 0)
        if given == len(taken):
            taken.append(self._next(iterator))
        self._given[iterator] = given + 1
        return taken[given]

    def _step_aside(self) -> None:
        if not any(self._taken.values()):
            self._kind.__next__ = self._next  # type: ignore[attr-defined]


@contextmanager
def same_batches(torch: Any) -> Iterator[Batches]:
    """Feed a step the same batches, after each `Batches.rewind`."""
    batches = Batches(torch.utils.data.dataloader._BaseDataLoaderIter)  # noqa: SLF001 - of all its iterators
    try:
        yield batches
    finally:
        batches.end()


_WINDOW = 2**20  # bytes looked at behind each pointer
_LEAST_WINDOW = 2**18  # a smaller stretch is not worth an opinion: a bias, a few scalars
_SAMPLED = 2**16
CONSTANT = 0.999
"""Uniformity from which on a window holds one value only, zero or other."""
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


def windows(torch: Any, memory: Memory, words: Sequence[int]) -> list[Any]:
    """Return views of what a kernel's pointers point at, each address once."""
    views = []
    for address in dict.fromkeys(words):
        # A capture reuses addresses, so of several allocations the one that ends first counts.
        inside = (memory.starts <= address) & (address < memory.ends)
        known = memory.holds(address) and inside.any()
        extent = int(memory.ends[inside].min()) - address if known else 0
        size = min(_WINDOW, extent) // 2 * 2
        if size >= _LEAST_WINDOW and address % 2 == 0:
            # The form in which PyTorch takes another library's arrays.
            words_there = {"shape": (size // 2,), "typestr": "<i2", "data": (address, False)}
            array = SimpleNamespace(__cuda_array_interface__={**words_there, "version": 3})
            views.append(torch.as_tensor(array, device="cuda"))
    return views


def uniformity(view: Any) -> float:
    """Return the share of a window's 2-byte words that are its most common one."""
    step = max(1, view.numel() // _SAMPLED)
    words = view[::step]
    _, counts = words.unique(return_counts=True)
    return float(counts.max()) / float(words.numel())


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
