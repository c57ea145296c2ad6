"""The columns of a table somebody made: what separates them, and what they are called."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from underclock.errors import DataError
from underclock.store.readings import READINGS
from underclock.units import name_hint

NEEDED: Final = ("gpu", "kernel", "core_mhz", "mem_mhz", "time_s")
EITHER: Final = ("energy_j", "power_w")  # with time, each gives the other
_OPTIONAL: Final = ("count", "pass", "waited_for", *READINGS)
KNOWN: Final = (*NEEDED, *EITHER, *_OPTIONAL)
_SEPARATORS: Final = {",": "commas", ";": "semicolons", "\t": "tabs"}


def separator_of(header: str) -> str:
    """Return what separates columns: whatever yields most names that we know, or else a comma."""
    return max(
        _SEPARATORS,
        key=lambda mark: len({_plain(name) for name in header.split(mark)} & set(KNOWN)),
    )


@dataclass(frozen=True, slots=True)
class Columns:
    """What the columns of a table are.

    Attributes:
        names: As in the file, in lower case with underscores.
        taken: What a reader must know of how they were read.
    """

    names: tuple[str, ...]
    taken: tuple[str, ...]

    @property
    def places(self) -> dict[str, int]:
        """Where in a row the cell of each column is."""
        return {name: place for place, name in enumerate(self.names)}

    @classmethod
    def of(cls, where: object, header: Sequence[str], separator: str) -> Self:
        """Read a header.

        Args:
            where: Names the table in errors.
            header: Names as they stand in the file.
            separator: What was taken to separate them.

        Raises:
            DataError: A column that is needed is missing, or there twice.
        """
        names = tuple(_plain(name) for name in header)
        read = f"{where}, read with {_SEPARATORS[separator]} between columns,"
        missing = [name for name in NEEDED if name not in names]
        if not set(EITHER) & set(names):
            missing.append(" or ".join(EITHER))
        if missing:
            raise DataError(
                f"{read} lacks the column {', '.join(missing)}",
                hint=f"it needs {', '.join(NEEDED)}, and {' or '.join(EITHER)}; it has "
                f"{', '.join(names)}",
            )
        twice = [name for name, count in Counter(names).items() if count > 1 and name in KNOWN]
        if twice:
            raise DataError(f"{read} repeats a column: {', '.join(twice)}")
        return cls(names, tuple(_taken(names, separator)))


def _taken(names: Iterable[str], separator: str) -> Iterable[str]:
    """Say what is not as a plain table has it."""
    if separator != ",":
        yield f"the table was read with {_SEPARATORS[separator]} between its columns"
    extra = [name for name in names if name not in KNOWN]
    if extra:
        close = (name_hint(name, _OPTIONAL) for name in extra)
        meant = next((f"; {words}" for words in close if words.startswith("did you mean")), "")
        named = ", ".join(repr(name) if name else "one without a name" for name in extra)
        yield f"columns of the table that nothing here reads were left out: {named}{meant}"
    if "energy_j" not in names:
        yield "the table has no energy_j: it was taken as power_w times time_s"


def _plain(name: str) -> str:
    """Return a column's name as we write it: ``Core MHz`` and ``core_mhz`` are the same."""
    return re.sub(r"[^a-z0-9]+", "_", name.casefold()).strip("_")
