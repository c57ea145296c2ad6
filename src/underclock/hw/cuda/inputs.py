"""Whether what a step is fed is fit to measure on.

Zeros draw far less power than random numbers: on one matrix product 424 W against 752 W (H200,
measured by us). A step fed with zeros measures some other step.
"""

from collections.abc import Sequence
from typing import Any

from underclock.errors import MeasurementError
from underclock.hw.cuda.graphs import GraphNode
from underclock.hw.cuda.state import holders, live_tensors, plain, wraps_others

_LEAST_ELEMENTS = 4096  # smaller inputs decide no kernel's power


def candidates(torch: Any) -> list[Any]:
    """Return the GPU's floating-point tensors that are no model's and no optimizer's.

    Called before the capture, so that nothing the capture makes is among them.
    """
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
    """Refuse a step that reads an input which holds one value only.

    Raises:
        MeasurementError: It does.
    """
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
