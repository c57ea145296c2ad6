"""What changes of clocks take: as a table believes, and better once they were seen."""

import bisect
from collections import defaultdict, deque
from collections.abc import Hashable

from underclock.records.latencies import Domain
from underclock.runtime.machine.timetable import Change

_ENOUGH, _REMEMBERED = 5, 31  # changes seen before they count, and of which the mean is taken
_ODD = 3.0  # medians: a call that hangs for seconds says nothing of the next


class Latencies:
    """Calls and delays of one GPU."""

    def __init__(self) -> None:
        self._calls = _Seen()
        self._delays = _Seen()

    def returned(self, domain: Domain, to_mhz: int | None, call_s: float) -> None:
        """Note how long a setter blocked; setting and giving back are calls of their own."""
        self._calls.add((domain, to_mhz is None), call_s)

    def followed(self, domain: Domain, to_mhz: int | None, delay_s: float) -> None:
        """Note how long after the call's return the clock was seen to be the new one."""
        self._delays.add((domain, to_mhz), delay_s)

    def call_s(self, change: Change) -> float:
        """Return how long the setter is expected to block."""
        key = change.domain, change.to_mhz is None
        return self._calls.usual_s.get(key, change.believed.call_s)

    def delay_s(self, change: Change) -> float:
        """Return how long after the call the clock is expected to be the new one."""
        key = change.domain, change.to_mhz
        return self._delays.usual_s.get(key, change.believed.delay_s)

    def lead_s(self, change: Change) -> float:
        """Return how long ahead a change is to be asked for; calls follow each other."""
        call_s = self.call_s(change)
        alone_s = call_s + self.delay_s(change)
        if change.behind is None:
            return alone_s
        return max(alone_s, self.lead_s(change.behind) + call_s)

    def sure_s(self, change: Change) -> float:
        """Return how long after the call's return it has very likely happened."""
        believed = change.believed
        return self.delay_s(change) + believed.delay_p95_s - believed.delay_s


class _Seen:
    """Durations that were seen, and what is usual once they are enough."""

    def __init__(self) -> None:
        self.usual_s: dict[Hashable, float] = {}
        self._lately_s: defaultdict[Hashable, deque[float]] = defaultdict(_few)

    def add(self, key: Hashable, duration_s: float) -> None:
        """Note one more."""
        lately_s = self._lately_s[key]
        lately_s.append(duration_s)
        if len(lately_s) >= _ENOUGH:
            ordered_s, count = sorted(lately_s), len(lately_s)
            most_s = _ODD * ordered_s[count // 2]
            few = bisect.bisect_right(ordered_s, most_s)  # the others count as the most
            self.usual_s[key] = (sum(ordered_s[:few]) + (count - few) * most_s) / count


def _few() -> deque[float]:
    return deque(maxlen=_REMEMBERED)
