"""A step whose operators were seen, not its kernels: those that a GPU would run are assumed.

PyTorch hands operators to a device below autograd, alike on a CPU and a GPU, and on a GPU most of
them launch one kernel. So each is taken to be one, with the FLOPs and the least bytes of its
tensors. A GPU's libraries may split it into several, or choose another algorithm; compiled parts
fuse theirs. FLOPs per element are those of `workloads`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from underclock.core.tracing.host import complete_events, is_collective
from underclock.core.tracing.profile import activities
from underclock.core.tracing.step import nodes_of, traced_step
from underclock.records import ASSUMED, Step
from underclock.records.launches import LAUNCH_MARK, Operator, TracedActivity

_CAVEAT = (
    "no GPU was seen: the step ran on the CPU, and its kernels are assumed, one for each operator; "
    "measure on a real GPU what is traced there"
)
_WORK = (  # what a GPU calls its kernel, and FLOPs per element; the first that fits
    (r"(add)?b?mm|baddbmm|_scaled_mm|.*convolution.*", "gemm", 0.0),
    (r".*attention.*", "attention", 0.0),
    (r".*_norm_backward.*", "layer_norm_backward", 12.0),
    (r".*(layer|batch|group|rms)_norm.*", "layer_norm", 8.0),
    (r".*softmax_backward.*", "softmax_backward", 4.0),
    (r".*softmax.*", "softmax", 5.0),
    (r"(gelu|silu|mish)_backward", "elementwise", 64.0),
    (r"gelu|silu_?|mish_?", "elementwise", 32.0),
    (r"_fused_.*", "multi_tensor_apply", 15.0),
    (r"_foreach_norm", "multi_tensor_apply", 2.0),
    (r"_foreach_(copy|zero)_?", "multi_tensor_apply", 0.0),
    (r"_foreach_.*", "multi_tensor_apply", 1.0),
    (r"copy_|_to_copy|clone|cat|stack|.*embedding|index(_select)?|gather|.*_pad.*", "copy", 0.0),
    (r"(new_)?(zeros|ones|full)(_like)?|(zero|fill)_?|arange|scalar_tensor", "fill", 0.0),
    (r"(sum|mean|prod|amax|amin|argmax|norm|linalg_vector_norm|all|any)", "reduce", 1.0),
    (r".*", "elementwise", 1.0),
)


def assumed_step(name: str, trace: Mapping[str, Any], operators: Sequence[Operator]) -> Step:
    """Make a step of the operators that were seen of it.

    Args:
        trace: PyTorch's, in the Chrome format; an annotation stands where each was handed over.
        operators: In the order of these annotations' numbers.

    Raises:
        DataError: There are none, or it is no such trace.
    """
    seen: list[TracedActivity] = []
    work: list[Operator] = []
    for activity in activities({"traceEvents": [*_as_launched(complete_events(trace))]}):
        operator = operators[int(activity.function)]
        work.append(operator)
        seen.append(
            msgspec.structs.replace(
                activity,
                function=ASSUMED + _work_of(operator)[0],
                operator=operator.name,
                shapes=operator.shapes,
            )
        )
    # What an operator makes may differ where what it takes does not.
    nodes = [
        msgspec.structs.replace(node, bytes=operator.bytes_moved)
        for node, operator in zip(nodes_of(seen), work, strict=True)
    ]
    step = traced_step(name, nodes, seen, warnings=[_CAVEAT]).step
    first = {kernel: launch for launch, kernel in reversed([*enumerate(step.order)])}
    return msgspec.structs.replace(
        step,
        kernels=tuple(
            msgspec.structs.replace(
                kernel,
                flops=_work_of(work[first[index]])[1],
                bytes_moved=kernel.bytes_moved or float(max(1, work[first[index]].bytes_moved)),
            )
            for index, kernel in enumerate(step.kernels)
        ),
    )


def _work_of(operator: Operator) -> tuple[str, float]:
    """Return what a GPU would call an operator's kernel, and the FLOPs of one launch."""
    if is_collective(operator.name):
        return "collective", 0.0
    bare = operator.name.partition("::")[2]
    what, each = next((what, each) for pattern, what, each in _WORK if re.fullmatch(pattern, bare))
    return what, each * operator.elements if operator.flops is None else operator.flops


def _as_launched(events: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield a trace's events, each annotation as the launch of a kernel and as that kernel."""
    for event in events:
        mark, _, number = str(event.get("name")).partition(LAUNCH_MARK)
        if mark or not number:
            yield event
            continue
        arguments = {"correlation": int(number)}
        yield {**event, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": arguments}
        yield {**event, "cat": "kernel", "name": number, "args": arguments}
