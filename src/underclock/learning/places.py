"""Which places of a training step are marked where no plan names any.

A step is seen as a row of events, each of a module: its forward begins or ends, its backward
begins. Layers that repeat, the children of a list, are marked first, then what is inside of them,
as deep as marks may lie close together. What begins at one moment is marked once. Standard library
only: the training process loads this.
"""

from __future__ import annotations

from collections import Counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

Place = tuple[str, str, int, int]
"""Event, path of its module, its occurrence in a step from 0, and how often it comes in one."""


def places_of(seen: Sequence[tuple[str, str]], most: int, ends: Collection[str]) -> list[Place]:
    """Choose places to mark, in the order of the step.

    Args:
        seen: All events of a step and the paths of their modules, in order.
        most: Places at most; where layers alone are more, every second one, or every third.
        ends: Events that end something: they are marked last.
    """
    totals, counts = Counter(seen), Counter[tuple[str, str]]()
    outer: list[Place] = []
    for event, path in seen:
        place = event, path, counts[event, path], totals[event, path]
        counts[event, path] += 1
        # A layer's forward and that of the first module in it begin at once, as what they end with.
        if outer and outer[-1][0] == event and _is_inside(path, outer[-1][1]):
            continue
        if outer and outer[-1][0] == event and _is_inside(outer[-1][1], path):
            outer.pop()
        outer.append(place)
    begins = [place for place in outer if place[0] not in ends]
    inside = {_inside(path) for _, path, _, _ in outer}
    levels = [[p for p in begins if _inside(p[1]) <= level] for level in sorted(inside)]
    fitting = [some for some in (*levels, outer) if len(some) <= most]
    return fitting[-1] if fitting else levels[0][:: -(-len(levels[0]) // max(1, most))]


def kind_of(place: Sequence[object]) -> tuple[object, str]:
    """Return what places of all layers have in common: the event, and the path without numbers."""
    event, path = place[0], str(place[1])
    return event, ".".join("*" if part.isdigit() else part for part in path.split("."))


def _is_inside(path: str, other: str) -> bool:
    return path.startswith(f"{other}.")


def _inside(path: str) -> int:
    """Return how deep a module lies inside of the innermost layer around it; 0 outside of any."""
    parts = path.split(".")
    numbers = [at for at, part in enumerate(parts) if part.isdigit()]
    return len(parts) - 1 - numbers[-1] if numbers else 0
