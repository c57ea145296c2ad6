"""Launches that differ only in a size that the data decides, pooled into one kernel.

Every call of an expert has another number of tokens, and each would be a kernel of its own. Where
one number that came out of the data is all that two launches' shapes differ in, or what it is
multiplied with in sizes and strides, they are one kernel, and the launch of median size is measured
for all. That costs accuracy: a kernel's time and energy are those of its median, so where cost
grows in proportion to size the pool's sum is off by as much as the median is off the mean, and
clocks that suit the median are taken to suit the largest and the smallest. Launches for which a
library chose another function are a pool of their own, so that no pool spans two algorithms; such a
pool may have one launch. Another run of the step has other sizes, and is the same step.
"""

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction

_NUMBER = re.compile(r"(?<=[\[x@])\d+")
NO_SIZE = "#"
_RANGE = re.compile(r"(\d+)\(\d+-\d+\)")


_Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Launches that are one kernel, or one whose size is another in another run.

    Attributes:
        members: Which, in launch order.
        sizes: Of each the number that differs, the least where it differs in several.
        shapes: Of the median, with the range of every number that differs.
    """

    members: tuple[int, ...]
    sizes: tuple[int, ...]
    shapes: str

    @property
    def median(self) -> int:
        """The launch of median size; of two the smaller."""
        by_size = sorted(zip(self.sizes, self.members, strict=True))
        return by_size[(len(by_size) - 1) // 2][1]

    @property
    def median_size(self) -> int:
        """Its size."""
        return sorted(self.sizes)[(len(self.sizes) - 1) // 2]


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
    places = {
        member: pool.places
        for pool in _grown(asked, shapes, known)
        if pool.places
        for member in pool.members
    }
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
    for member, (kind, text) in enumerate(zip(alike, shapes, strict=True)):
        numbers = tuple(map(int, _NUMBER.findall(_each(text))))
        mine = found[kind, _NUMBER.sub("#", text)]
        if not any(pool.takes(member, numbers, known) for pool in mine):
            mine.append(_Growing([member], [numbers]))
    return [pool for some in found.values() for pool in some]


def without_sizes(shapes: str, instead: str = NO_SIZE, known: Collection[int] = ()) -> str:
    """Return a shapes text with something instead of the sizes that the data decides.

    Args:
        shapes: The text.
        instead: What.
        known: Numbers that came out of the data; by default sizes of pools alone are replaced.
    """
    rest = _RANGE.sub(instead, shapes)
    return _NUMBER.sub(lambda number: instead if int(number[0]) in known else number[0], rest)


def _each(shapes: str) -> str:
    """Return shapes with the elements of a list's tensors counted for each, if all are alike."""

    def divided(found: re.Match[str]) -> str:
        each, rest = divmod(int(found[2]), max(1, int(found[1])))
        return found[0] if rest else f"{found[1]} tensors[{each}]"

    return re.sub(r"(\d+) tensors\[(\d+)", divided, shapes)


@dataclass(slots=True)
class _Growing:
    """A pool to which launches are being added.

    Attributes:
        members: Which launches.
        numbers: In the shapes of each.
        places: Which of these differ; none while there is one size only.
    """

    members: list[int]
    numbers: list[_Numbers]
    places: tuple[int, ...] = ()

    def takes(self, member: int, numbers: _Numbers, known: frozenset[int]) -> bool:
        """Add a launch if it belongs here; return whether it does."""
        pairs = list(zip(self.numbers[0], numbers, strict=True))
        places = tuple(at for at, (a, b) in enumerate(pairs) if a != b)
        if places and self.places not in {(), places}:
            return False
        if places and not _is_scaled([pairs[place] for place in places], known):
            return False
        self.members.append(member)
        self.numbers.append(numbers)
        self.places = self.places or places
        return True

    def grown(self, shapes: Sequence[str]) -> Pool:
        """Return it as it is."""
        sizes = tuple(min(each[place] for place in self.places) for each in self.numbers)
        pool = Pool(members=tuple(self.members), sizes=sizes, shapes="")
        written = [list(map(int, _NUMBER.findall(shapes[member]))) for member in self.members]
        ranges = {place: [each[place] for each in written] for place in self.places}
        at = itertools.count()

        def mark(number: re.Match[str]) -> str:
            some = ranges.get(next(at))
            return f"{number[0]}({min(some)}-{max(some)})" if some else number[0]

        return dataclasses.replace(pool, shapes=_NUMBER.sub(mark, shapes[pool.median]))


def _is_scaled(pairs: Sequence[tuple[int, int]], known: frozenset[int]) -> bool:
    """Whether all pairs of numbers differ by one factor, and the least came out of the data."""
    if not all(map(all, pairs)):  # without an element nothing runs
        return False
    least = {min(one for one, _ in pairs), min(other for _, other in pairs)}
    return len({Fraction(*pair) for pair in pairs}) == 1 and least <= known
