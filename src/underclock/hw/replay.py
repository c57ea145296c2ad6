"""A measurer that answers from a measured table; there is no GPU behind it."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from underclock.errors import MeasurementError
from underclock.hw.base import Capability, Reading
from underclock.records import AUTO, Clocks, Evidence, GpuInfo, Kernel, Mix, SampleSet, Step, Window


class ReplayMeasurer:
    """Answers with the rows of a sample_set; repeats cycle through the rows there are."""

    step: Step | None = None
    capabilities: frozenset[Capability] = frozenset()

    def __init__(self, table: SampleSet) -> None:
        self.table = table
        self.evidence: Evidence = table.evidence
        self._rows: dict[tuple[str, Clocks], list[Window]] = defaultdict(list)
        for sample in table.samples:
            self._rows[sample.kernel, sample.asked].append(sample)
        self._held = AUTO

    def info(self) -> GpuInfo:
        """Return the table's GPU."""
        return self.table.gpu

    def settings(self) -> tuple[Clocks, ...]:
        """Return every clock pair that stands in the table, for any kernel."""
        return tuple(dict.fromkeys(clocks for _, clocks in self._rows))

    def notes(self) -> tuple[str, ...]:
        """Return the table's warnings."""
        return self.table.warnings

    def brings(self) -> tuple[str, tuple[Kernel, ...]]:
        """Return the table's kernels."""
        return self.table.workload, self.table.kernels

    def can_measure(self, kernel: Kernel, clocks: Clocks) -> bool:
        """Whether the table has a row."""
        return (kernel.name, clocks) in self._rows

    def core_clocks(self) -> tuple[int, ...]:
        """Return every core clock in the table, ascending."""
        return tuple(sorted({c.core_mhz for c in self.settings() if c.core_mhz is not None}))

    def repeats(self, kernel: Kernel, clocks: Clocks) -> int:
        """Return how many rows the table has for a kernel at these clocks."""
        return len(self._rows.get((kernel.name, clocks), ()))

    def now_s(self) -> float:
        """Return 0: replaying takes no time."""
        return 0.0

    def warm(self, kernels: Sequence[Kernel]) -> float:
        """Refuse: a table does not warm up."""
        raise MeasurementError(f"a table cannot be warmed by running {len(kernels)} kernels")

    def takes_s(self, launch_s: float, *, timed: bool = False) -> float:
        """Return 1: every row is as near as any other."""
        del launch_s, timed
        return 1.0

    @contextmanager
    def hold(self, clocks: Clocks) -> Iterator[None]:
        """Answer with the rows at these clocks from entry to exit."""
        self._held = clocks
        try:
            yield
        finally:
            self._held = AUTO

    def measure(
        self,
        kernels: Sequence[Kernel],
        repeat: int = 0,
        *,
        mix: Mix | None = None,
        timed: bool = False,
    ) -> Reading:
        """Answer with a row.

        Raises:
            MeasurementError: The table has none, or more was asked for than an isolated kernel.
        """
        if mix is not None or timed:
            raise MeasurementError(
                "a table knows isolated kernels only: nothing runs, with co-load or to be timed",
                hint="steer clocks on a GPU that runs kernels: nvml:N, or a simulated one",
            )
        if len(kernels) != 1:
            raise MeasurementError("a table knows isolated kernels only, not a whole step")
        rows = self._rows.get((kernels[0].name, self._held))
        if not rows:
            raise MeasurementError(
                f"the table has no row for {kernels[0].name!r} at {self._held}",
                hint="only what was measured can be replayed",
            )
        row = rows[repeat % len(rows)]
        return Reading(time_s=row.time_s, energy_j=row.energy_j)
