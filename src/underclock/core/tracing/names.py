"""What traced kernels are called: layer, operator, role and pass, and what else tells two apart.

A role is what the operator's name does not say and its shapes do: a copy that changes the type is
a cast, a product of the backward pass is the gradient of an input or of a weight. Only where
nothing that is known tells two kernels apart are they numbered.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from underclock.core.tracing.kinds import FACTORS_FROM
from underclock.core.tracing.sizes import without_sizes
from underclock.records import Kernel, Launch, Pass

_PASS_WORD = {Pass.FORWARD: "", Pass.OTHER: ""}  # the rest by their own names
_TENSOR = re.compile(r"(\w+)\[([^\]]*)\](?:@([\dnx]+))?")
_PRODUCT_FUNCTION = re.compile(r"gemm|nvjet|cutlass|xmma|wgmma", re.IGNORECASE)
_FUSED = re.compile(r"triton_([a-z]+)_fused_(\w+?)_\d+")  # as torch.compile names its kernels
_FUSED_KINDS = {
    "poi": "pointwise",
    "red": "reduction",
    "per": "reduction",
    "tem": "template",
    "for": "foreach",
}
_PLAIN = re.compile(r"^(\w+_)?elementwise_kernel|^reduce_kernel|^triton_")  # they tell nothing
_LONGEST = 48  # of a function's name
_FACTORS = 2


@dataclass(frozen=True, slots=True)
class _Tensor:
    """An input as a shapes text has it; sizes and strides as text."""

    dtype: str
    sizes: str
    strides: str

    @property
    def is_transposed(self) -> bool:
        """Whether it is a matrix, or a batch of them, stored column by column."""
        *_, column, row = f"1x1x{self.strides}".split("x")
        return column == "1" != row and bool(self.strides)

    @property
    def is_broadcast(self) -> bool:
        """Whether several places of it are one in memory."""
        pairs = zip(self.sizes.split("x"), self.strides.split("x"), strict=False)
        return any(size != "1" and stride == "0" for size, stride in pairs)


def named(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Give traced kernels their names, each its own.

    Args:
        kernels: With launches, in order of first launch.
    """
    rows = _forward_rows(kernels)
    alike: defaultdict[str, list[int]] = defaultdict(list)
    launches = [kernel.launch for kernel in kernels if kernel.launch is not None]
    for at, (kernel, launch) in enumerate(zip(kernels, launches, strict=True)):
        alike[_name(kernel, launch, rows)].append(at)
    names = [""] * len(kernels)
    for name, places in alike.items():
        for at, better in _told_apart(name, {at: launches[at] for at in places}).items():
            names[at] = better
    return tuple(
        msgspec.structs.replace(kernel, name=name)
        for kernel, name in zip(kernels, numbered(names), strict=True)
    )


def numbered(names: Sequence[str]) -> list[str]:
    """Number the names that several have, so that each has its own."""
    often, so_far, taken = Counter(names), Counter[str](), set(names)
    own = []
    for name in names:
        if often[name] > 1:
            so_far[name] += 1
            while f"{name} {so_far[name]}" in taken:
                so_far[name] += 1
            own.append(f"{name} {so_far[name]}")
            taken.add(own[-1])
        else:
            own.append(name)
    return own


def short(function: str) -> str:
    """Return a function's own name, without namespace, template and parameters."""
    bare = re.sub(
        r"<.*", "", function.replace("(anonymous namespace)::", "").split("(", maxsplit=1)[0]
    )
    return bare.split("::")[-1].split(" ")[-1] or function[:40]


def starred(module: str) -> str:
    """Return a module path with every layer number as a star."""
    return ".".join("*" if part.isdecimal() else part for part in module.split("."))


def _name(kernel: Kernel, launch: Launch, rows: Mapping[str, set[str]]) -> str:
    """Return a kernel's layer, operator, role and pass."""
    modules = _modules(kernel)
    more = f"+{len(modules) - 1}" if len(modules) > 1 else ""
    where = modules[0] if modules else ""
    operator, role = _operator(launch), ""
    if operator == "copy_":
        operator = _copy(_tensors(launch.shapes))
    elif operator == "mm" and kernel.pass_ is Pass.BACKWARD:
        known = [rows[module] for module in modules if module in rows]
        role = _gradient(_factors(launch), set().union(*known))
    pass_word = _PASS_WORD.get(kernel.pass_, str(kernel.pass_))
    words = [where, more, operator, role or ("" if pass_word in operator else pass_word)]
    return " ".join(word for word in words if word)


def _operator(launch: Launch) -> str:
    """Return an operator in a person's words; of what torch.compile fused, what it does."""
    operator = launch.operator
    for known in ("aten::", "autograd::engine::", "nccl::"):
        operator = operator.removeprefix(known)
    fused = _FUSED.fullmatch(operator or launch.function)
    if fused is not None and fused[1] in _FUSED_KINDS:
        return f"{_FUSED_KINDS[fused[1]]} {fused[2]}"
    return operator or short(launch.function)


def _copy(tensors: Sequence[_Tensor]) -> str:
    """Say what a copy is for: it changes the type, or how a tensor lies in memory."""
    if len(tensors) < 2:  # noqa: PLR2004 - from one to another
        return "copy"
    to, source = tensors[:2]
    if to.dtype != source.dtype:
        return f"cast {source.dtype}\N{RIGHTWARDS ARROW}{to.dtype}"
    if source.is_broadcast and not to.is_broadcast:
        return "broadcast"
    if to.strides == source.strides:
        return "copy"
    return "copy to dense" if not to.strides else "copy to strided"


def _gradient(factors: Sequence[_Tensor], rows: set[str]) -> str:
    """Say of what a product of the backward pass is the gradient; empty where nothing tells.

    The gradient of a weight is summed over the rows that the forward pass multiplied by it, that of
    an input has such a row for each of them. Where sizes coincide, the transposed first factor
    tells the weight's.

    Args:
        factors: Both.
        rows: Of the forward products of its modules.
    """
    if len(factors) != _FACTORS or factors[0].sizes.count("x") != 1:
        return ""
    outer, inner = factors[0].sizes.split("x")
    if rows.isdisjoint((outer, inner)):
        return ""
    of_weight = inner in rows if rows.issuperset((outer,)) != (inner in rows) else None
    if of_weight is None:
        of_weight = factors[0].is_transposed
    return "weight gradient" if of_weight else "input gradient"


def _forward_rows(kernels: Sequence[Kernel]) -> dict[str, set[str]]:
    """Return how many rows the products of the forward pass have, by module."""
    rows: defaultdict[str, set[str]] = defaultdict(set)
    for kernel in kernels:
        factors = _factors(kernel.launch) if kernel.launch else []
        if kernel.pass_ is Pass.FORWARD and factors:
            for module in _modules(kernel):
                rows[module].add(factors[0].sizes.split("x")[-2])
    return rows


def _told_apart(name: str, launches: Mapping[int, Launch]) -> dict[int, str]:
    """Add to a name that several kernels would have what tells them apart.

    Best is what tells all apart; else what tells some, and something else for the others.
    """
    words = [{at: tell(launch) for at, launch in launches.items()} for tell in _TELLING]
    kinds = [len(set(said.values())) for said in words]
    telling = [at for at, count in enumerate(kinds) if count > 1]
    if not telling:
        return dict.fromkeys(launches, name)
    best = next((at for at in telling if kinds[at] == len(launches)), telling[0])
    told: dict[int, str] = {}
    for word in dict.fromkeys(words[best].values()):
        some = {at: launches[at] for at, said in words[best].items() if said == word}
        told |= _told_apart(f"{name} {word}" if word else name, some)
    return told


def _type(launch: Launch) -> str:
    """Return the type of the first input."""
    return next((tensor.dtype for tensor in _tensors(launch.shapes)), "")


def _product(launch: Launch) -> str:
    """Return the sizes of a product: rows, columns and what is summed over, a batch before."""
    factors = _factors(launch)
    if not factors:
        return ""
    *batch, rows, inner = factors[0].sizes.split("x")
    return "x".join([*batch, rows, factors[1].sizes.split("x")[-1], inner])


def _size(at: int) -> Callable[[Launch], str]:
    def size(launch: Launch) -> str:
        tensors = _tensors(launch.shapes)
        return tensors[at].sizes if at < len(tensors) and not _factors(launch) else ""

    return size


def _layout(launch: Launch) -> str:
    """Say which factors are transposed, as BLAS does; of what is no product, whether strided."""
    factors = _factors(launch)
    if factors:
        return "".join("NT"[factor.is_transposed] for factor in factors)
    strided = [bool(tensor.strides) for tensor in _tensors(launch.shapes)]
    if not any(strided):
        return ""
    return (
        "strided"
        if all(strided) or len(strided) == 1
        else f"strided input {strided.index(True) + 1}"
    )


def _part(launch: Launch) -> str:
    """Return which part of its operator a kernel is; empty for what does the most of it."""
    function = short(launch.function)
    main = _PRODUCT_FUNCTION.search(launch.function) and "reduce" not in function.lower()
    return "" if main or _PLAIN.search(function) else function[:_LONGEST]


_TELLING = (_type, _product, _size(0), _size(1), _size(2), _layout, _part)


def _modules(kernel: Kernel) -> list[str]:
    return kernel.section.split(", ") if kernel.section else []


def _factors(launch: Launch) -> list[_Tensor]:
    """Return both factors of a product; none of anything else."""
    first = FACTORS_FROM.get(launch.operator.removeprefix("aten::"))
    if first is None:
        return []
    factors = _tensors(launch.shapes)[first : first + _FACTORS]
    matrices = len(factors) == _FACTORS and all("x" in factor.sizes for factor in factors)
    return factors if matrices else []


def _tensors(shapes: str) -> list[_Tensor]:
    return [
        _Tensor(*match.groups(default="")) for match in _TENSOR.finditer(without_sizes(shapes, "n"))
    ]
