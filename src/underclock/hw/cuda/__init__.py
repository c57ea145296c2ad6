"""A training step on a real NVIDIA GPU: captured, taken apart, and its kernels run alone.

Nothing here sets anything on a GPU. PyTorch and cuda-bindings are imported where they are used.
`paths_below` names a model's modules alike when a step is traced and when it is held; the training
process loads this file as well: standard library only.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What holds a module under another that is called as it is."""
_REPLICATING = {"DistributedDataParallel", "DataParallel"}


def paths_below(called: Any) -> dict[int, str]:
    """Return the path of a module that no other module called, and of all below it, by identity.

    Wrappers have no name of their own: what compiling, checkpointing, sharding and replicating wrap
    is called as it was. The outermost is called after its class.
    """
    paths, inner = {}, called
    while type(inner).__name__ in _REPLICATING:
        paths[id(inner)] = type(inner).__name__
        inner = inner.module
    wrapped = inner
    for wrapper in WRAPPERS:
        wrapped = getattr(wrapped, wrapper, wrapped)
    for path, module in inner.named_modules():
        own = ".".join(part for part in path.split(".") if part not in WRAPPERS)
        paths[id(module)] = own or type(wrapped).__name__
    return paths


PIPELINE_METHODS = {
    "forward_one_chunk": "forward",
    "backward_one_chunk": "backward",
    "backward_weight_one_chunk": "weights",
}
"""What a stage of `torch.distributed.pipelining` does with a microbatch, and what we call it."""


def put(owner: Any, name: str, new: Any) -> Callable[[], None]:
    """Put something in the place of an attribute; return what puts the old one back."""
    is_own = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, new)

    def put_back() -> None:
        if vars(owner).get(name) is not new:
            return
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)

    return put_back
