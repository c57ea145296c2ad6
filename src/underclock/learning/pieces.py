"""How a training step is cut at marks where no plan names any, and which pieces share a clock.

A step is seen as a row of events, each of a module: its forward begins or ends, its backward
begins. Layers that repeat, the children of a list, are marked first, then what is inside of them,
as deep as marks may lie close together. What begins at one moment is marked once.

A mark begins a piece. Pieces of one kind, as the attention of every layer, share a clock. What
lasts too short for a clock to change is merged with the kind that follows it. Standard library
only: the training process loads this.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter, defaultdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

Place = tuple[str, str, int, int]
"""Event, path of its module, its occurrence in a step from 0, and how often it comes in one."""

MOST_PLACES = 500
_FEWEST_PLACES = 16
_EVERY_S = 2e-3  # of a step, in the mean: a mark takes some 5 µs of the training process


def places_of(
    seen: Sequence[tuple[str, str]],
    step_s: float,
    ends: Collection[str],
    sites: Mapping[tuple[str, str, int], int] | None = None,
) -> tuple[list[Place], tuple[int, ...]]:
    """Choose places to mark, in the order of the step.

    Args:
        seen: All events of a step and the paths of their modules, in order.
        step_s: How long a step takes.
        ends: Events that end something: they are marked last.
        sites: Launch of each place that a simulated GPU knows; no other place is chosen.

    Returns:
        The places, and the launches at which they are, where ``sites`` says.
    """
    if sites is None:  # what the step begins with, its own mark shows
        most = int(min(max(step_s / _EVERY_S, _FEWEST_PLACES), MOST_PLACES)) - 1
        apart = itertools.dropwhile(lambda place: place[0] == seen[0][0], _apart(seen))
        return _chosen(list(apart), most, ends), ()
    known = {site[:2] for site in sites}
    some = _chosen(_apart([each for each in seen if each in known]), MOST_PLACES - 1, ends)
    places, latest = [], 0
    for place in some:
        launch = sites.get(place[:3], 0)
        if launch > latest:
            places.append(place)
            latest = launch
    return places, tuple(sites[place[:3]] for place in places)


def _apart(seen: Sequence[tuple[str, str]]) -> list[Place]:
    """Return the places of events without those that come at once with one further outside."""
    totals, counts = Counter(seen), Counter[tuple[str, str]]()
    outer: list[Place] = []
    for event, path in seen:
        place = event, path, counts[event, path], totals[event, path]
        counts[event, path] += 1
        # A layer's forward and that of the first module in it begin at once, as what they end with.
        if outer and outer[-1][0] == event and path.startswith(f"{outer[-1][1]}."):
            continue
        if outer and outer[-1][0] == event and outer[-1][1].startswith(f"{path}."):
            outer.pop()
        outer.append(place)
    return outer


def _chosen(places: Sequence[Place], most: int, ends: Collection[str]) -> list[Place]:
    """Return the most places that are no more; of layers alone, every second one or every third."""
    begins = [place for place in places if place[0] not in ends]
    if not begins:
        return []
    depths = sorted({_depth(path) for _, path, _, _ in begins})
    levels = [[each for each in begins if _depth(each[1]) <= depth] for depth in depths]
    fitting = [some for some in (*levels, list(places)) if len(some) <= most]
    return fitting[-1] if fitting else levels[0][:: -(-len(levels[0]) // max(1, most))]


def _depth(path: str) -> int:
    """Return how deep a module lies inside of the innermost layer around it; 0 outside of any."""
    parts = path.split(".")
    numbers = [at for at, part in enumerate(parts) if part.isdigit()]
    return len(parts) - 1 - numbers[-1] if numbers else 0


def kind_of(place: Sequence[object]) -> tuple[object, str]:
    """Return what places of all layers have in common: the event, and the path without numbers."""
    event, path = place[0], str(place[1])
    return event, ".".join("*" if part.isdigit() else part for part in path.split("."))


def write_places(page: str, places: Sequence[Place]) -> None:
    """Note, as the trainer, where the marks of a page are.

    Raises:
        OSError: It cannot be written.
    """
    from pathlib import Path  # noqa: PLC0415 - PyTorch has it loaded

    new = Path(f"{page}.new")
    new.write_text(json.dumps(places))
    new.replace(f"{page}.places")


def read_places(page: str) -> list[list[str | int]]:
    """Return where the marks of a page are, as its trainer noted; empty for none."""
    from pathlib import Path  # noqa: PLC0415 - likewise

    with contextlib.suppress(OSError, ValueError):
        noted: list[list[str | int]] = json.loads(Path(f"{page}.places").read_text())
        return noted
    return []


def merged_kinds(
    kinds: Sequence[Hashable], lasts_s: Sequence[float], least_s: float, most: int
) -> tuple[int, ...]:
    """Return the segment of each piece: pieces of a kind share one, and short kinds are merged.

    Args:
        kinds: Of each piece, in the order of the step.
        lasts_s: What each piece takes.
        least_s: Least mean length of a run of pieces of one segment.
        most: Segments at most.
    """
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    labels = [numbers[kind] for kind in kinds]
    while len(set(labels)) > 1:
        runs: defaultdict[int, list[float]] = defaultdict(list)
        follows: defaultdict[int, Counter[int]] = defaultdict(Counter)
        begun = [
            (label, [at for at, _ in run])
            for label, run in itertools.groupby(enumerate(labels), key=lambda each: each[1])
        ]
        for number, (label, places) in enumerate(begun):
            runs[label].append(sum(lasts_s[at] for at in places))
            follows[label][begun[(number + 1) % len(begun)][0]] += 1
        means_s = {label: sum(some) / len(some) for label, some in runs.items()}
        shortest = min(means_s, key=lambda label: means_s[label])
        if means_s[shortest] >= least_s:
            if len(means_s) <= most:
                break
            shortest = min(runs, key=lambda label: sum(runs[label]))
        into = next((each for each, _ in follows[shortest].most_common() if each != shortest), None)
        if into is None:
            break
        labels = [into if label == shortest else label for label in labels]
    order = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return tuple(order[label] for label in labels)
