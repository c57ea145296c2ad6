"""Nodes, with what launched them, to the distinct kernels of a step in launch order."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from underclock.core.tracing.kinds import flops_of, kind_of
from underclock.errors import DataError
from underclock.records import Kernel, Launch, Pass, Step
from underclock.records.launches import LaunchGroup, Node, NodeKind, Traced, TracedActivity

_PASS_WORD = {Pass.FORWARD: "", Pass.OTHER: ""}  # the rest by their own names


def launch_groups(
    nodes: Sequence[Node],
    matched: Sequence[TracedActivity | None],
    cleared: Sequence[Sequence[int]] = (),
) -> tuple[LaunchGroup, ...]:
    """Group each kernel with the memsets and copies that its operator launched before it.

    A group holds the memsets and copies that stand right before the kernel, and every memset of its
    operator that clears memory the kernel is given. Without the latter a kernel that counts its
    blocks down in such memory, as a sort does, waits forever the second time. A memset or copy of
    an operator that launches no kernel after it stands alone.

    Args:
        nodes: The graph's, in launch order.
        matched: The activity of each, as `alignment.align` returns it.
        cleared: For each node the earlier memsets whose memory it points into; empty if unknown.
    """
    groups: list[LaunchGroup] = []
    waiting: list[int] = []

    def release() -> None:
        groups.extend(LaunchGroup(nodes=(i,), activity=matched[i]) for i in waiting)
        waiting.clear()

    for index, node in enumerate(nodes):
        if node.kind is NodeKind.OTHER:
            continue
        if waiting and not _same_call(matched[waiting[-1]], matched[index]):
            release()
        if node.kind is NodeKind.KERNEL:
            others = cleared[index] if cleared else ()
            mine = {i for i in others if _same_call(matched[i], matched[index])}
            helpers = sorted(mine.union(waiting))
            groups.append(LaunchGroup(nodes=(*helpers, index), activity=matched[index]))
            waiting.clear()
        else:
            waiting.append(index)
    release()
    return tuple(groups)


def _same_call(one: TracedActivity | None, other: TracedActivity | None) -> bool:
    if one is None or other is None:
        return False
    return (one.operator, one.shapes, one.pass_) == (other.operator, other.shapes, other.pass_)


def traced_step(
    name: str,
    nodes: Sequence[Node],
    matched: Sequence[TracedActivity | None],
    *,
    cleared: Sequence[Sequence[int]] = (),
    warnings: Sequence[str] = (),
    obstacle: str = "",
) -> Traced:
    """Make a step of a graph's nodes.

    Args:
        name: The step's name.
        nodes: The graph's, in launch order.
        matched: The activity of each; ``None`` where unknown.
        cleared: As for `launch_groups`.
        warnings: Sentences the reader must see beside the trace.
        obstacle: Why its kernels cannot be isolated.

    Raises:
        DataError: The step launches nothing.
    """
    groups = launch_groups(nodes, matched, cleared)
    if not groups:
        raise DataError(
            "the step launched no kernel on the GPU",
            hint="move the model and its inputs to the GPU, and run one whole training step",
        )
    launches: dict[tuple[str, Pass], list[Launch]] = {}
    keys: list[tuple[str, Pass]] = []
    for group in groups:
        launch = _launch(nodes, group)
        keys.append((launch.identity, group.activity.pass_ if group.activity else Pass.OTHER))
        launches.setdefault(keys[-1], []).append(launch)
    place = {key: index for index, key in enumerate(launches)}
    order = tuple(place[key] for key in keys)
    kernels = [_kernel(alike, pass_) for (_, pass_), alike in launches.items()]
    step = Step(
        name=name,
        kernels=_uniquely_named(kernels),
        order=order,
        obstacle=obstacle,
        warnings=(*warnings, obstacle) if obstacle else tuple(warnings),
    )
    return Traced(step=step, groups=groups)


def nodes_of(activities: Sequence[TracedActivity]) -> tuple[Node, ...]:
    """Return activities as if they were nodes, for a step that cannot be captured."""
    return tuple(
        Node(kind=a.kind, function=a.function, grid=a.grid, block=a.block) for a in activities
    )


def _launch(nodes: Sequence[Node], group: LaunchGroup) -> Launch:
    node, activity = nodes[group.nodes[-1]], group.activity
    operator = activity.operator if activity else ""
    shapes = activity.shapes if activity else ""
    helpers = tuple(f"{nodes[i].kind.value} of {nodes[i].bytes} B" for i in group.nodes[:-1])
    function = node.function or node.kind.value
    # An operator and its inputs decide what its kernel computes. Parameters would as well, but they
    # also hold what does not matter: where a random stream stands, a learning rate.
    meaning = (operator, shapes) if operator else (node.parameters, "")
    facts = (
        function,
        node.grid,
        node.block,
        node.shared_bytes,
        node.attributes,
        node.bytes,
        meaning,
        tuple((nodes[i].kind.value, nodes[i].bytes) for i in group.nodes[:-1]),
    )
    return Launch(
        function=function,
        grid=node.grid,
        block=node.block,
        shared_bytes=node.shared_bytes,
        attributes=node.attributes,
        operator=operator,
        shapes=shapes,
        module=starred(activity.module) if activity else "",
        served_by=helpers,
        identity=hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:16],
    )


def _kernel(alike: Sequence[Launch], pass_: Pass) -> Kernel:
    """Make a kernel of the launches that share an identity."""
    launch = alike[0]
    modules = list(dict.fromkeys(other.module for other in alike if other.module))
    return Kernel(
        name=_name(launch, modules, pass_),
        kind=kind_of(launch.operator, launch.function),
        pass_=pass_,
        section=", ".join(modules),
        shape=launch.shapes[:120],
        count=len(alike),
        flops=flops_of(launch.operator, launch.shapes),
        launch=launch,
    )


def _name(launch: Launch, modules: Sequence[str], pass_: Pass) -> str:
    operator = launch.operator.removeprefix("aten::").removeprefix("autograd::engine::")
    more = f"+{len(modules) - 1}" if len(modules) > 1 else ""
    where = modules[0] if modules else ""
    words = [where, more, operator or _short(launch.function), _PASS_WORD.get(pass_, str(pass_))]
    return " ".join(word for word in words if word)


def _short(function: str) -> str:
    """Return a function's own name, without namespace, template and parameters."""
    bare = re.sub(
        r"<.*", "", function.replace("(anonymous namespace)::", "").split("(", maxsplit=1)[0]
    )
    return bare.split("::")[-1].split(" ")[-1] or function[:40]


def starred(module: str) -> str:
    """Return a module path with every layer number as a star."""
    return ".".join("*" if part.isdecimal() else part for part in module.split("."))


def _uniquely_named(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Number the kernels that would share a name."""
    often = Counter(kernel.name for kernel in kernels)
    so_far: Counter[str] = Counter()
    named = []
    for kernel in kernels:
        so_far[kernel.name] += 1
        name = kernel.name if often[kernel.name] == 1 else f"{kernel.name} {so_far[kernel.name]}"
        named.append(msgspec.structs.replace(kernel, name=name))
    return tuple(named)
