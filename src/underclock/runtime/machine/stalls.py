"""Times in which nothing executes because a clock changes: expected until marks show them."""


class Stalls:
    """Stalls that are expected and did not show yet."""

    def __init__(self) -> None:
        self._expected_s: list[tuple[float, float]] = []  # when each begins, and how long it is

    def expect(self, at_s: float, stall_s: float) -> None:
        """Expect that nothing executes for some time."""
        self._expected_s.append((at_s, stall_s))

    def put_off_s(self, at_s: float) -> float:
        """Return when that happens which would happen at a time without them."""
        if not self._expected_s:
            return at_s
        return at_s + sum(stall_s for begins_s, stall_s in self._expected_s if begins_s < at_s)

    def shown_s(self, since_s: float, over_s: float) -> float:
        """Return for how long nothing executed since the last mark, and expect that no more.

        When a stall begins is known as well as delays are: it may lie on either side of a mark.

        Args:
            since_s: When the last mark was reached.
            over_s: How much later the mark after it was seen than it would have been without any
                stall.
        """
        shown_s = 0.0
        for stall in self._expected_s[:]:
            begins_s, stall_s = stall
            if over_s - shown_s > 0.5 * stall_s:
                shown_s += stall_s
                self._expected_s.remove(stall)
            elif begins_s + stall_s < since_s:  # it should have shown long ago
                self._expected_s.remove(stall)
        return shown_s
