"""What changes of clocks take: as a table believes, and better once they were seen."""

import statistics
from collections import defaultdict, deque

from underclock.records.latencies import Domain
from underclock.runtime.timetable import Change

_ENOUGH, _REMEMBERED = 5, 31  # changes seen before they count, and of which the mean is taken
_ODD = 3.0  # medians: a call that hangs for seconds says nothing of the next


class Latencies:
    """Calls and delays of one GPU."""

    def __init__(self) -> None:
        self._calls_s: defaultdict[tuple[Domain, bool], deque[float]] = defaultdict(_few)
        self._delays_s: defaultdict[tuple[Domain, int | None], deque[float]] = defaultdict(_few)

    def returned(self, domain: Domain, to_mhz: int | None, call_s: float) -> None:
        """Note how long a setter blocked; setting and giving back are calls of their own."""
        self._calls_s[domain, to_mhz is None].append(call_s)

    def followed(self, domain: Domain, to_mhz: int | None, delay_s: float) -> None:
        """Note how long after the call's return the clock was seen to be the new one."""
        self._delays_s[domain, to_mhz].append(delay_s)

    def call_s(self, change: Change) -> float:
        """Return how long the setter is expected to block."""
        seen_s = self._calls_s.get((change.domain, change.to_mhz is None))
        return _usual(seen_s, change.believed.call_s)

    def delay_s(self, change: Change) -> float:
        """Return how long after the call the clock is expected to be the new one."""
        seen_s = self._delays_s.get((change.domain, change.to_mhz))
        return _usual(seen_s, change.believed.delay_s)

    def lead_s(self, change: Change) -> float:
        """Return how long ahead a change is to be asked for; calls follow each other."""
        call_s = self.call_s(change)
        alone_s = call_s + self.delay_s(change)
        return (
            alone_s if change.behind is None else max(alone_s, self.lead_s(change.behind) + call_s)
        )

    def sure_s(self, change: Change) -> float:
        """Return how long after the call's return it has very likely happened."""
        believed = change.believed
        return self.delay_s(change) + believed.delay_p95_s - believed.delay_s


def _few() -> deque[float]:
    return deque(maxlen=_REMEMBERED)


def _usual(seen_s: deque[float] | None, believed_s: float) -> float:
    if seen_s is None or len(seen_s) < _ENOUGH:
        return believed_s
    most_s = _ODD * statistics.median(seen_s)
    return statistics.fmean(min(each_s, most_s) for each_s in seen_s)
