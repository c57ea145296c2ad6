"""Nodes, with what launched them, to the distinct kernels of a step in launch order."""

import hashlib
import math
from collections.abc import Collection, Sequence

import msgspec

from underclock.core.tracing.names import Pool, flops_of, kind_of, named, pools
from underclock.core.tracing.profile import bytes_of
from underclock.errors import DataError
from underclock.records import Kernel, Launch, Pass, Step
from underclock.records.work import (
    LaunchGroup,
    Node,
    NodeKind,
    Traced,
    TracedActivity,
    module_calls_text,
)

_Key = tuple[str, Pass]
# cuDNN has a kernel of one block write what the next one counts down. Without it the products of
# convolutions' weight gradients ran once alone on an H200, and waited forever the second time.
_PREPARES = "init_device_workspace"


def launch_groups(
    nodes: Sequence[Node],
    matched: Sequence[TracedActivity | None],
    cleared: Sequence[Sequence[int]] = (),
) -> tuple[LaunchGroup, ...]:
    """Group each kernel with what its operator launched before it to serve it.

    A group holds the memsets and copies that stand right before the kernel, a kernel that prepares
    its workspace, and every memset of its operator that clears memory the kernel is given. Without
    them a kernel that counts its blocks down in such memory, as a sort does, waits forever the
    second time. What serves an operator that launches no kernel after it stands alone.

    Args:
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
        if node.kind is NodeKind.KERNEL and _PREPARES not in node.function:
            clears = cleared[index] if cleared else ()
            mine = {i for i in clears if _same_call(matched[i], matched[index])}
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
    data_sizes: Collection[int] = (),
) -> Traced:
    """Make a step of a graph's nodes.

    Args:
        matched: The activity of each; ``None`` where unknown.
        warnings: Sentences that a reader of the trace must see.
        obstacle: Why its kernels cannot be isolated.
        data_sizes: Numbers that came out of the step's data; launches whose shapes differ in these
            only are one kernel, as `sizes` says.

    Raises:
        DataError: The step launches nothing.
    """
    groups = launch_groups(nodes, matched, cleared)
    if not groups:
        raise DataError(
            "the step launched no kernel on the GPU",
            hint="move the model and its inputs to the GPU, and run one whole training step",
        )
    launches = [_launch(nodes, group) for group in groups]
    passes = [group.activity.pass_ if group.activity else Pass.OTHER for group in groups]
    found = _pools(launches, passes, data_sizes) if data_sizes else ()
    # The key that launches of one kernel share: their identity, or their pool's.
    keys = [(launch.identity, pass_) for launch, pass_ in zip(launches, passes, strict=True)]
    for pool in found:
        median = launches[pool.median]
        identity = _hash((median.identity, median.module, pool.shapes))
        for member in pool.members:
            keys[member] = (identity, passes[member])
    alike: dict[_Key, list[int]] = {}
    for at, key in enumerate(keys):
        alike.setdefault(key, []).append(at)
    place = {key: index for index, key in enumerate(alike)}
    pooled = {keys[pool.median]: pool for pool in found}
    kernels = []
    for key, some in alike.items():
        ran = [groups[at].activity for at in some]
        shares = [one.waited_for for one in ran if one is not None]
        waited_for = math.fsum(shares) / len(shares) if shares else 1.0
        kernels.append(_kernel([launches[at] for at in some], key, pooled.get(key), waited_for))
    notes = list(warnings)
    if found:
        pooled_launches = sum(len(pool.members) for pool in found)
        taken = sum(pool.median_size * len(pool.members) for pool in found)
        off = taken / sum(sum(pool.sizes) for pool in found) - 1.0
        notes.append(
            f"the data decides the sizes of {pooled_launches} launches: they are {len(found)} "
            f"kernels, each measured at its median size; together that is {off:+.0%} of size"
        )
    notes += [obstacle] if obstacle else []
    modules = tuple(
        module_calls_text((*each.callers, each.module)) if (each := group.activity) else ""
        for group in groups
    )
    step = Step(
        name=name,
        kernels=named(kernels),
        order=tuple(place[key] for key in keys),
        modules=modules if any(modules) else (),
        obstacle=obstacle,
        data_sizes=tuple(sorted(data_sizes)),
        warnings=tuple(notes),
    )
    medians = {place[key]: pool.median for key, pool in pooled.items()}
    return Traced(step=step, groups=groups, medians=medians)


def _pools(
    launches: Sequence[Launch], passes: Sequence[Pass], data_sizes: Collection[int]
) -> tuple[Pool, ...]:
    """Return the launches that are one kernel but for a size that the data decides."""
    asked = [
        (launch.operator or launch.function, launch.module, pass_)
        for launch, pass_ in zip(launches, passes, strict=True)
    ]
    helpers = [tuple(helper.split(" ")[0] for helper in each.served_by) for each in launches]
    alike = [
        (*what, launch.function, launch.block, launch.attributes, served)
        for what, launch, served in zip(asked, launches, helpers, strict=True)
    ]
    by_shape = pools(alike, asked, [launch.shapes for launch in launches], data_sizes)
    # A profile has no shapes of optional tensors in a list, as `index` takes them; a grid with one
    # of the data's sizes shows them instead.
    pooled = {member for pool in by_shape for member in pool.members}
    with_grid = [
        "" if at in pooled else f"{launch.shapes}, grid[{'x'.join(map(str, launch.grid))}]"
        for at, launch in enumerate(launches)
    ]
    return (*by_shape, *pools(alike, asked, with_grid, data_sizes))


def nodes_of(activities: Sequence[TracedActivity]) -> tuple[Node, ...]:
    """Return activities as if they were nodes, for a step that cannot be captured."""
    return tuple(
        Node(kind=a.kind, function=a.function, grid=a.grid, block=a.block) for a in activities
    )


def _launch(nodes: Sequence[Node], group: LaunchGroup) -> Launch:
    node, activity = nodes[group.nodes[-1]], group.activity
    operator = activity.operator if activity else ""
    shapes = activity.shapes if activity else ""
    path = activity.module.split(".") if activity else []
    helpers = [nodes[i] for i in group.nodes[:-1]]
    function = node.function or node.kind.value
    # An operator and its inputs decide what its kernel computes. Parameters would as well, but they
    # also hold what does not matter: where a random stream stands, a learning rate.
    meaning = (operator, shapes) if operator else (node.parameters, "")
    launched = function, node.grid, node.block, node.shared_bytes, node.attributes, node.bytes
    served = tuple((each.kind.value, each.bytes) for each in helpers)
    return Launch(
        function=function,
        grid=node.grid,
        block=node.block,
        shared_bytes=node.shared_bytes,
        attributes=node.attributes,
        operator=operator,
        shapes=shapes,
        module=".".join("*" if part.isdecimal() else part for part in path),
        served_by=tuple(
            f"{each.kind.value} {_PREPARES}"
            if each.kind is NodeKind.KERNEL
            else f"{each.kind.value} of {each.bytes} B"
            for each in helpers
        ),
        identity=_hash((*launched, meaning, served)),
    )


def _kernel(alike: Sequence[Launch], key: _Key, pool: Pool | None, waited_for: float) -> Kernel:
    identity, pass_ = key
    launch = alike[0] if pool is None else alike[pool.members.index(pool.median)]
    flops = flops_of(launch.operator, launch.shapes)
    if pool is not None:
        launch = msgspec.structs.replace(launch, shapes=pool.shapes, identity=identity)
    modules = list(dict.fromkeys(other.module for other in alike if other.module))
    return Kernel(
        name=launch.function,  # until all are known
        kind=kind_of(launch.operator, launch.function),
        pass_=pass_,
        section=", ".join(modules),
        shape=launch.shapes[:120],
        count=len(alike),
        flops=flops,
        bytes_moved=bytes_of(launch.operator, launch.shapes),
        launch=launch,
        waited_for=waited_for,
    )


def _hash(facts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:16]
