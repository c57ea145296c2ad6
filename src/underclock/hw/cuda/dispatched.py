"""A step's operators, as PyTorch hands them to whatever device it runs on: a CPU will do."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from underclock.hw.cuda.driver import installed
from underclock.hw.cuda.torch_step import recorded
from underclock.records.work import LAUNCH_MARK, Operator

_NO_WORK = {  # besides views: what allocates only, and what a host does
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_"),
    *("_unsafe_view", "_reshape_alias", "lift_fresh", "_local_scalar_dense", "record_stream"),
    *("is_same_size", "wait_tensor", "_wrap_tensor_autograd"),
}
_COLLECTIVES = {"_c10d_functional", "c10d"}
_AS_NCCL = {  # of a functional collective, what PyTorch names it in a profile where NCCL runs it
    "all_reduce": "allreduce",
    "all_gather_into_tensor": "_allgather_base",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "all_to_all_single": "all_to_all",
}
_GATHERS = {"embedding", "index", "index_select", "gather", "nll_loss_forward"}
_MADE_ANEW = {"copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "random_"}
_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "int64": "i64",
    "int32": "i32",
    "uint8": "u8",
    "int8": "i8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


@contextmanager
def operators_seen() -> Iterator[tuple[Mapping[str, Any], list[Operator]]]:
    """Yield what holds, after the block, PyTorch's trace of it and its operators.

    An optimizer that leaves it open runs as it would on a GPU, with all parameters at once.
    """
    torch = installed()
    operators: list[Operator] = []
    with recorded(torch) as trace, _optimizers_as_on_gpu(), _mode(torch, operators):
        yield trace, operators


def _mode(torch: Any, operators: list[Operator]) -> Any:
    from torch._subclasses import FakeTensor  # noqa: PLC0415 - the user's own
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415 - the user's own
    from torch.utils.flop_counter import flop_registry  # noqa: PLC0415 - the user's own

    plain = torch.Tensor.__torch_dispatch__

    class Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if any(issubclass(each, FakeTensor) for each in types):
                return function(*args, **kwargs)  # a call for shapes only
            if any(each.__torch_dispatch__ is not plain for each in types):
                return NotImplemented  # a tensor spread over ranks: what it does here comes next
            name = function._schema.name  # noqa: SLF001 - there is no other way to ask
            bare = name.partition("::")[2]
            ours = function.is_view or bare in _NO_WORK or name.startswith(("profiler::", "prim::"))
            # The steps that an optimizer counts are the host's on a GPU too.
            counts = bare.startswith("_foreach_") and all(each.dim() == 0 for each in args[0])
            if ours or counts:
                return function(*args, **kwargs)
            with torch.profiler.record_function(f"{LAUNCH_MARK}{len(operators)}"):
                result = function(*args, **kwargs)
            packet = getattr(torch.ops.aten, bare.replace("_for_cpu", ""), None)
            count = flop_registry.get(packet)
            flops = None if count is None else float(count(*args, **kwargs, out_val=result))
            operators.append(_operator(torch, function, args, kwargs, result, flops))
            return result

    return Noting()  # type: ignore[no-untyped-call]


def _operator(
    torch: Any, function: Any, args: Any, kwargs: Any, result: Any, flops: float | None
) -> Operator:
    name = function._schema.name.replace("_for_cpu", "")  # noqa: SLF001
    space, _, bare = name.rpartition("::")
    if space in _COLLECTIVES:
        return _collective(torch, bare, [*args, *kwargs.values()], result)
    given = [*args, *kwargs.values()]
    made = list(result) if isinstance(result, tuple | list) else [result]
    read = [each for each in (_tensors(torch, one) for one in given) if each]
    new = [
        each
        for each in (_tensors(torch, one) for one in made)
        if each and not any(each[0] is other for tensors in read for other in tensors)
    ]
    sizes = [sum(map(_bytes, each)) for each in read]
    if bare in _GATHERS and sizes:  # of a table it reads what it is asked for only
        sizes[0] = min(sizes[0], sum(sum(map(_bytes, each)) for each in new))
    changed = 0 if bare in _MADE_ANEW else sum(_changed(torch, function, args, kwargs))
    return Operator(
        name=name,
        shapes=", ".join(map(_shape, read)),
        elements=max((sum(t.numel() for t in each) for each in read + new), default=0),
        bytes_moved=sum(sizes) + changed + sum(sum(map(_bytes, each)) for each in new),
        flops=flops,
    )


def _collective(torch: Any, bare: str, given: list[Any], result: Any) -> Operator:
    """Return a collective as a GPU's trace has it; what it returns may be what it was given."""
    group = next((each for each in given if isinstance(each, torch.ScriptObject)), given[-1])
    if isinstance(group, torch.ScriptObject):
        group = torch.distributed.ProcessGroup.unbox(group)
    elif isinstance(group, str):
        group = torch.distributed.distributed_c10d._resolve_process_group(group)  # noqa: SLF001
    tensors = [each for each in (_tensors(torch, one) for one in given) if each]
    made = _tensors(torch, result)
    # What writes into a tensor that it is given has that one first.
    sent, received = (tensors[-1], tensors[0]) if len(tensors) > 1 else (tensors[0], made)
    texts = [
        f"{_DTYPES.get(dtype, dtype)}[{sum(each.numel() for each in some)}]"
        for some in (sent, received or sent)
        for dtype in [str(some[0].dtype).removeprefix("torch.")]
    ]
    name = f"nccl::{_AS_NCCL.get(bare, bare.rstrip('_'))}"
    shapes = f"{texts[0]} to {texts[1]} among {group.size()} ranks"
    return Operator(
        name=name,
        shapes=shapes,
        elements=max(sum(each.numel() for each in some) for some in (sent, received or sent)),
        bytes_moved=sum(sum(map(_bytes, some)) for some in (sent, received or sent)),
        flops=None,
    )


def _changed(torch: Any, function: Any, args: Any, kwargs: Any) -> Iterator[int]:
    for at, argument in enumerate(function._schema.arguments):  # noqa: SLF001
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[at] if at < len(args) else kwargs.get(argument.name)
            yield sum(map(_bytes, _tensors(torch, value)))


def _tensors(torch: Any, value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [each for each in value if torch.is_tensor(each)]
    return [value] if torch.is_tensor(value) else []


def _bytes(tensor: Any) -> int:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return int(math.prod(size for size, stride in sizes if stride) * tensor.element_size())


def _shape(tensors: list[Any]) -> str:
    if len(tensors) > 1:
        return f"{len(tensors)} tensors[{sum(tensor.numel() for tensor in tensors)}]"
    tensor = tensors[0]
    dtype = str(tensor.dtype).removeprefix("torch.")
    text = f"{_DTYPES.get(dtype, dtype)}[{'x'.join(map(str, tensor.shape))}]"
    return text if tensor.is_contiguous() else f"{text}@{'x'.join(map(str, tensor.stride()))}"


@contextmanager
def _optimizers_as_on_gpu() -> Iterator[None]:
    """Have optimizers take all parameters at once where the user leaves it open, as on a GPU."""
    from torch.optim import optimizer as hooks  # noqa: PLC0415 - the user's own

    opened: list[Any] = []

    def choose(optimizer: Any, *_: object) -> None:
        for group in optimizer.param_groups:
            if group.get("foreach", True) is None and not group.get("fused"):
                group["foreach"] = True
                opened.append(group)

    handle = hooks.register_optimizer_step_pre_hook(choose)
    try:
        yield
    finally:
        handle.remove()
        for group in opened:
            group["foreach"] = None
