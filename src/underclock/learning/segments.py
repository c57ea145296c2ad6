"""Which parts of a step have a clock of their own: kinds of pieces between marks.

A step is cut at marks into pieces; pieces of one kind, as the attention of every layer, share a
clock. What lasts too short for a clock to change is merged with the kind that follows it.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence


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
