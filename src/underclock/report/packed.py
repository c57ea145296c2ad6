"""What a page draws by itself: timelines and tables as columns, packed into the page.

Texts are listed once, boxes that are alike share a state, numbers keep four digits; all of it is
deflated and written in base64. The page's script unpacks it, and works nothing out.
"""

import base64
import itertools
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Packed = dict[str, Any]


class TimelineBox(NamedTuple):
    """Something that runs for a while at one clock.

    Attributes:
        core_mhz: ``None`` where it is not known, or clocks do not matter.
        set_by: Who sets the clock: 1 Underclock, 0 the driver, -1 nobody, for it does not matter.
        gap_s: How long nothing runs before it.
    """

    name: str
    lasts_s: float
    core_mhz: float | None
    set_by: int
    mem_mhz: int | None = None
    power_w: float | None = None
    gap_s: float = 0.0


class Packer:
    """Gathers a page's data; whatever is said twice is written once."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}

    def text(self, words: str) -> int:
        """Return the place of a text in the list of all."""
        return self._texts.setdefault(words, len(self._texts))

    def track(
        self,
        boxes: Sequence[TimelineBox],
        *,
        label: str = "",
        leaf: str = "",
        groups: Mapping[str, Sequence[str]] | None = None,
    ) -> Packed:
        """Return boxes in a row.

        Args:
            label: What the row is called, where not for its clocks.
            leaf: What a row of their names is called; empty for none.
            groups: Rows above it: what each box belongs to, by the name of the row.
        """
        states: dict[tuple[object, ...], int] = {}
        order = []
        for box in boxes:
            state = (
                self.text(box.name),
                digits(box.lasts_s),
                box.core_mhz,
                box.set_by,
                box.mem_mhz,
                None if box.power_w is None else digits(box.power_w, 3),
            )
            order.append(states.setdefault(state, len(states)))
        columns = list(zip(*states, strict=True))
        gaps_s = [digits(box.gap_s) for box in boxes]
        return {
            "label": label,
            "leaf": leaf,
            "states": [differences(columns[0]), *columns[1:]] if columns else [()] * 6,
            "order": differences(order),
            "gaps": gaps_s if any(gaps_s) else [],
            "groups": [
                (name, *zip(*self._runs(words), strict=True))
                for name, words in (groups or {}).items()
            ],
        }

    def _runs(self, words: Iterable[str]) -> list[tuple[int, int]]:
        """Return each text of a row, and how often it follows itself."""
        return [(self.text(word), len(list(run))) for word, run in itertools.groupby(words)]

    def packed(self, **parts: object) -> str:
        """Return all of it as text that may stand in a page as it is."""
        everything = {**parts, "texts": list(self._texts)}
        written = json.dumps(everything, separators=(",", ":"), ensure_ascii=False)
        return base64.b64encode(zlib.compress(written.encode(), 9)).decode()


def column(label: str, key: str, kind: str, values: Sequence[object]) -> Packed:
    """Return one column of a table.

    Args:
        label: Its heading.
        key: Its name in a CSV file.
        kind: How values are shown: ``text`` (places of texts, as differences), ``parts`` (such
            places and how often each), ``count``, ``mhz`` (``None`` is auto, two are a range),
            ``joules``, ``seconds`` or ``change`` (in 10⁻⁴).
        values: One a row.
    """
    return {"label": label, "key": key, "kind": kind, "values": list(values)}


def digits(value: float, most: int = 4) -> float:
    """Round to so many digits."""
    return float(f"{value:.{most}g}")


def differences(places: Sequence[int]) -> list[int]:
    """Return each place less the one before: neighbours name neighbours, mostly."""
    return [place - before for before, place in itertools.pairwise((0, *places))]
