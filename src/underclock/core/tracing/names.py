"""Names of traced kernels: layer, operator, role and pass, and then any further difference.

A role is what the operator's name does not say and its shapes do: a copy that changes the type is
a cast, a product of the backward pass is the gradient of an input or of a weight. Kernels
with no known difference are numbered.

Launches that differ only in a size that the data decides are pooled into one kernel: every call of
an expert has another number of tokens, and each would be a kernel of its own. Where one number that
came out of the data is all that two launches' shapes differ in, or what it is multiplied with in
sizes and strides, the launch of median size is measured for all. That costs accuracy: where cost
grows in proportion to size the pool's sum is off by as much as the median is off the mean, and
clocks that suit the median are taken to suit the largest and the smallest. Launches for which a
library chose another function are a pool of their own, so that no pool spans two algorithms; such a
pool may have one launch. Another run of the step has other sizes, and is the same step.
"""

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import msgspec

from underclock.core.tracing.profile import is_collective
from underclock.records import Kernel, Kind, Launch, Pass

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
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_mm", "_int_mm"}
FACTORS_FROM = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Which input of a product its two factors begin with: what is added to it comes before."""
_ATTENTION = re.compile(r"flash|fmha|efficient_attention|cudnn_attention|sdpa", re.IGNORECASE)
_NUMBER = re.compile(r"(?<=[\[x@])\d+")
NO_SIZE = "#"
_RANGE = re.compile(r"(\d+)\(\d+-\d+\)")
_LISTED = re.compile(r"(\d+) tensors\[(\d+)")
_Numbers = tuple[int, ...]


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
    """Give traced kernels their names, each its own."""
    # How many rows the products of the forward pass have, by module.
    rows: defaultdict[str, set[str]] = defaultdict(set)
    for kernel in kernels:
        factors = _factors(kernel.launch.operator, kernel.launch.shapes) if kernel.launch else []
        if kernel.pass_ is Pass.FORWARD and factors:
            for module in _modules(kernel):
                rows[module].add(factors[0].sizes.split("x")[-2])
    alike: defaultdict[str, list[int]] = defaultdict(list)
    launches = [kernel.launch for kernel in kernels if kernel.launch is not None]
    for at, (kernel, launch) in enumerate(zip(kernels, launches, strict=True)):
        modules = _modules(kernel)
        more = f"+{len(modules) - 1}" if len(modules) > 1 else ""
        where = modules[0] if modules else ""
        operator, role = _operator(launch), ""
        if operator == "copy_":
            operator = _copy(_tensors(launch.shapes))
        elif operator == "mm" and kernel.pass_ is Pass.BACKWARD:
            known = [rows[module] for module in modules if module in rows]
            role = _gradient(_factors(launch.operator, launch.shapes), set().union(*known))
        pass_word = _PASS_WORD.get(kernel.pass_, str(kernel.pass_))
        words = [where, more, operator, role or ("" if pass_word in operator else pass_word)]
        alike[" ".join(word for word in words if word)].append(at)
    names = [""] * len(kernels)
    for name, places in alike.items():
        for at, better in _distinct_names(name, {at: launches[at] for at in places}).items():
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
    bare = re.sub(r"[(<].*", "", function.replace("(anonymous namespace)::", ""), flags=re.DOTALL)
    return bare.split("::")[-1].split(" ")[-1] or function[:40]


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
    """Return what a product of the backward pass is the gradient of; empty where unknown."""
    # The gradient of a weight is summed over the rows that the forward pass multiplied by it, that
    # of an input has one row for each of them. Where sizes coincide, a transposed first factor
    # marks the weight's.
    if len(factors) != _FACTORS or factors[0].sizes.count("x") != 1:
        return ""
    outer, inner = factors[0].sizes.split("x")
    if rows.isdisjoint((outer, inner)):
        return ""
    of_weight = inner in rows if rows.issuperset((outer,)) != (inner in rows) else None
    if of_weight is None:
        of_weight = factors[0].is_transposed
    return "weight gradient" if of_weight else "input gradient"


def _distinct_names(name: str, launches: Mapping[int, Launch]) -> dict[int, str]:
    """Add words to a name that several kernels share, so that they differ."""
    # One property that differs for all is best; else one that differs for some, then further ones.
    words = [{at: tell(launch) for at, launch in launches.items()} for tell in _TELLING]
    kinds = [len(set(said.values())) for said in words]
    telling = [at for at, count in enumerate(kinds) if count > 1]
    if not telling:
        return dict.fromkeys(launches, name)
    best = next((at for at in telling if kinds[at] == len(launches)), telling[0])
    names: dict[int, str] = {}
    for word in dict.fromkeys(words[best].values()):
        some = {at: launches[at] for at, said in words[best].items() if said == word}
        names |= _distinct_names(f"{name} {word}" if word else name, some)
    return names


def _type(launch: Launch) -> str:
    return next((tensor.dtype for tensor in _tensors(launch.shapes)), "")


def _product(launch: Launch) -> str:
    factors = _factors(launch.operator, launch.shapes)
    if not factors:
        return ""
    *batch, rows, inner = factors[0].sizes.split("x")
    return "x".join([*batch, rows, factors[1].sizes.split("x")[-1], inner])


def _size(at: int, launch: Launch) -> str:
    tensors = _tensors(launch.shapes)
    is_product = bool(_factors(launch.operator, launch.shapes))
    return tensors[at].sizes if at < len(tensors) and not is_product else ""


def _layout(launch: Launch) -> str:
    factors = _factors(launch.operator, launch.shapes)
    if factors:
        return "".join("NT"[factor.is_transposed] for factor in factors)
    strided = [bool(tensor.strides) for tensor in _tensors(launch.shapes)]
    if not any(strided):
        return ""
    return "strided" if all(strided) else f"strided input {strided.index(True) + 1}"


def _part(launch: Launch) -> str:
    """Return which part of its operator a kernel is; empty for what does the most of it."""
    function = short(launch.function)
    main = _PRODUCT_FUNCTION.search(launch.function) and "reduce" not in function.lower()
    return "" if main or _PLAIN.search(function) else function[:_LONGEST]


_SIZES = [partial(_size, at) for at in range(3)]
_TELLING: Sequence[Callable[[Launch], str]] = (_type, _product, *_SIZES, _layout, _part)


def _modules(kernel: Kernel) -> list[str]:
    return kernel.section.split(", ") if kernel.section else []


def _factors(operator: str, shapes: str) -> list[_Tensor]:
    first = FACTORS_FROM.get(operator.removeprefix("aten::"))
    if first is None:
        return []
    factors = _tensors(shapes)[first : first + _FACTORS]
    matrices = len(factors) == _FACTORS and all("x" in factor.sizes for factor in factors)
    return factors if matrices else []


def _tensors(shapes: str) -> list[_Tensor]:
    return [
        _Tensor(*match.groups(default="")) for match in _TENSOR.finditer(without_sizes(shapes, "n"))
    ]


def kind_of(operator: str, function: str) -> Kind:
    """Tell collectives, and products, attention included, from kernels that move memory."""
    if is_collective(operator) or function.startswith("nccl"):
        return Kind.COLLECTIVE
    bare = operator.removeprefix("aten::")
    if bare in _PRODUCTS or _ATTENTION.search(operator + function):
        return Kind.GEMM
    return Kind.GEMM if _PRODUCT_FUNCTION.search(function) else Kind.MEMORY


def flops_of(operator: str, shapes: str) -> float | None:
    """Return 2·m·n·k of a matrix product, from its factors; ``None`` for all else.

    Args:
        shapes: Of its inputs; where it writes into a tensor it is given, that comes last.
    """
    sizes = [[*map(int, each.sizes.split("x"))] for each in _factors(operator, shapes)]
    return 2.0 * math.prod(sizes[0]) * sizes[1][-1] if sizes else None


@dataclass(frozen=True, slots=True)
class Pool:
    """Launches that are one kernel, or one whose size is another in another run."""

    members: tuple[int, ...]  # which, in launch order
    sizes: tuple[int, ...]  # of each the number that differs, the least where it differs in several
    median: int  # the launch of median size; of two the smaller
    median_size: int  # its size
    shapes: str  # of it, with the range of every number that differs


def pools(
    alike: Sequence[Hashable],
    asked: Sequence[Hashable],
    shapes: Sequence[str],
    data_sizes: Collection[int],
) -> tuple[Pool, ...]:
    """Return the launches that differ only in a size the data decides.

    Args:
        alike: What else decides a launch's cost, of each launch in order.
        asked: What of that the step asked for; the rest a library chose.
        shapes: Its operator's inputs, as text.
        data_sizes: Numbers that came out of the data.
    """
    known = frozenset(data_sizes)
    several = [pool for pool in _grown(asked, shapes, known) if pool.places]
    places = {member: pool.places for pool in several for member in pool.members}
    found = []
    for pool in _grown(alike, shapes, known):
        pool.places = pool.places or places.get(pool.members[0], ())
        if pool.places:
            found.append(pool.grown(shapes))
    return tuple(found)


def _grown(
    alike: Sequence[Hashable], shapes: Sequence[str], known: frozenset[int]
) -> list["_Growing"]:
    found: defaultdict[Hashable, list[_Growing]] = defaultdict(list)

    def divided(found: re.Match[str]) -> str:
        """Count the elements of a list's tensors for each, if all are alike."""
        each, rest = divmod(int(found[2]), max(1, int(found[1])))
        return found[0] if rest else f"{found[1]} tensors[{each}]"

    for member, (kind, text) in enumerate(zip(alike, shapes, strict=True)):
        numbers = tuple(map(int, _NUMBER.findall(_LISTED.sub(divided, text))))
        mine = found[kind, _NUMBER.sub("#", text)]
        if not any(pool.takes(member, numbers, known) for pool in mine):
            mine.append(_Growing([member], [numbers]))
    return [pool for some in found.values() for pool in some]


def without_sizes(shapes: str, instead: str = NO_SIZE, known: Collection[int] = ()) -> str:
    """Return a shapes text with something instead of the sizes that the data decides.

    Args:
        known: Numbers that came out of the data; by default sizes of pools alone are replaced.
    """
    rest = _RANGE.sub(instead, shapes)
    return _NUMBER.sub(lambda number: instead if int(number[0]) in known else number[0], rest)


@dataclass(slots=True)
class _Growing:
    """A pool to which launches are being added."""

    members: list[int]  # which launches
    numbers: list[_Numbers]  # in the shapes of each
    places: tuple[int, ...] = ()  # which of these differ; none while there is one size only

    def takes(self, member: int, numbers: _Numbers, known: frozenset[int]) -> bool:
        """Add a launch if it belongs here; return whether it does."""
        pairs = list(zip(self.numbers[0], numbers, strict=True))
        places = tuple(at for at, (a, b) in enumerate(pairs) if a != b)
        if places and self.places not in {(), places}:
            return False
        if places:
            # By one factor, and the least came out of the data; without an element nothing runs.
            some = [pairs[place] for place in places]
            least = {min(one for one, _ in some), min(other for _, other in some)}
            factors = {Fraction(*pair) for pair in some} if all(map(all, some)) else set()
            if len(factors) != 1 or not least <= known:
                return False
        self.members.append(member)
        self.numbers.append(numbers)
        self.places = self.places or places
        return True

    def grown(self, shapes: Sequence[str]) -> Pool:
        """Return it as it is."""
        sizes = tuple(min(each[place] for place in self.places) for each in self.numbers)
        by_size = sorted(zip(sizes, self.members, strict=True))
        median_size, median = by_size[(len(by_size) - 1) // 2]
        written = [list(map(int, _NUMBER.findall(shapes[member]))) for member in self.members]
        ranges = {place: [each[place] for each in written] for place in self.places}
        at = itertools.count()

        def mark(number: re.Match[str]) -> str:
            some = ranges.get(next(at))
            return f"{number[0]}({min(some)}-{max(some)})" if some else number[0]

        shown = _NUMBER.sub(mark, shapes[median])
        return Pool(tuple(self.members), sizes, median, median_size, shown)
