"""Numbers of a live run for Prometheus, counted from the lines of its log.

They are answered on this machine, or written to a file for node exporter's textfile collector. What
OpenTelemetry's semantic conventions for hardware name is called as there (``hw.energy``,
``hw.power``, ``hw.temperature``, with ``hw.id`` and ``hw.type``); they know no GPU's clocks.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from underclock.errors import NotSupportedError, UnderclockError
from underclock.ledger.entries import hashed
from underclock.ledger.openmetrics import (
    OPENMETRICS_TYPE,
    TEXT_TYPE,
    FamilyKind,
    MetricFamily,
    openmetrics_text,
    prometheus_text,
)
from underclock.records.runs import AskLine, Line, StepLine
from underclock.runtime.undo.processes import say
from underclock.store.files import write_text

_FILE_EVERY_S = 15.0  # as often as Prometheus asks by most settings
_HZ = 1e6
_Of = Callable[[StepLine], float | None]


_COUNTERS: tuple[tuple[str, str, str, _Of], ...] = (  # name, unit, what it is, and of which
    (
        "underclock_step_energy_joules",
        "joules",
        "Drawn in steps whose energy is known",
        lambda line: None if line.energy_j is None else line.steps * line.energy_j,
    ),
    (
        "underclock_planned_changes",
        "",
        "Changes of clocks in steps that were seen closely",
        lambda line: None if line.hits is None else line.planned,
    ),
    ("underclock_hits", "", "Of those, within 1 ms of their launch", lambda line: line.hits),
    (
        "underclock_overruled_locks",
        "",
        "Locks that the driver overruled",
        lambda line: len(line.overruled),
    ),
)
_GAUGES: tuple[tuple[str, str, str, _Of], ...] = (
    ("underclock_step_seconds", "seconds", "The last step took", lambda line: line.time_s),
    ("underclock_core_hertz", "hertz", "Core clock", lambda line: _hertz(line.core_mhz)),
    ("underclock_memory_hertz", "hertz", "Memory clock", lambda line: _hertz(line.mem_mhz)),
    ("hw_power_watts", "watts", "Mean in the last step", lambda line: line.power_w),
    ("hw_temperature_celsius", "celsius", "In the last step", lambda line: line.temperature_c),
)


def _hertz(mhz: float | None) -> float | None:
    return None if mhz is None else _HZ * mhz


class Metrics:
    """Counters and gauges of a run.

    Args:
        uuids: Of its GPUs.
    """

    def __init__(self, uuids: Sequence[str]) -> None:
        self.energy_j: Callable[[int], float | None] = lambda _gpu: None  # drawn so far, by a GPU
        self._named = [{"gpu": str(at), "hw_id": hashed(uuid)} for at, uuid in enumerate(uuids)]
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._file: Path | None = None
        counter = FamilyKind.COUNTER
        self._steps = MetricFamily("underclock_steps", counter, "", "Steps that ended, by state")
        self._asks = MetricFamily("underclock_asks", counter, "", "Clocks that were asked for")
        self._drawn = MetricFamily("hw_energy_joules", counter, "joules", "Drawn by the GPU")
        self._shown = [
            (MetricFamily(name, kind, unit, words), of)
            for kind, some in ((counter, _COUNTERS), (FamilyKind.GAUGE, _GAUGES))
            for name, unit, words, of in some
        ]

    def write(self, line: Line) -> None:
        """Count a line of the log."""
        if not isinstance(line, StepLine | AskLine):
            return
        labels = self._named[line.gpu]
        with self._lock:
            if isinstance(line, AskLine):
                self._asks.add(1.0, {**labels, "domain": line.domain})
                return
            self._steps.add(line.steps, {**labels, "state": line.state})
            for family, of in self._shown:
                if (value := of(line)) is None:
                    continue
                if family.kind is FamilyKind.COUNTER:
                    family.add(value, labels)
                else:
                    family.set(value, _of_hardware(family, labels))

    def text(self, form: Callable[[Sequence[MetricFamily]], str]) -> str:
        """Return all of them as text."""
        with self._lock:
            for at, labels in enumerate(self._named):
                if (energy_j := self.energy_j(at)) is not None:
                    self._drawn.set(energy_j, _of_hardware(self._drawn, labels))
            shown = [family for family, _ in self._shown]
            return form([self._steps, self._asks, self._drawn, *shown])

    def serve(self, port: int) -> int:
        """Answer scrapes on this machine alone, by a thread; return the port, a free one for 0.

        Raises:
            NotSupportedError: The port is taken.
        """
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # noqa: PLC0415 - heavy

        metrics = self

        class _Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_new = "application/openmetrics-text" in self.headers.get("Accept", "")
                text = metrics.text(openmetrics_text if is_new else prometheus_text)
                self.send_response(200)
                self.send_header("Content-Type", OPENMETRICS_TYPE if is_new else TEXT_TYPE)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base
                """Say nothing: stderr is the trainer's."""

        try:
            server = ThreadingHTTPServer(("127.0.0.1", port), _Answer)
        except (OSError, OverflowError) as exc:
            why = getattr(exc, "strerror", None) or exc
            raise NotSupportedError(
                f"cannot serve metrics on port {port}: {why}", hint="name another port"
            ) from exc
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_port

    def keep(self, path: Path) -> None:
        """Write a file every now and then, by a thread; it goes when the run ends.

        Raises:
            UsageError: It cannot be written.
        """
        write_text(path, "", force=True)
        self._file = path

        def run() -> None:
            while not self._ended.wait(_FILE_EVERY_S):
                try:
                    write_text(path, self.text(prometheus_text), force=True)
                except UnderclockError as exc:
                    say(f"metrics are written no more: {exc}")
                    return

        threading.Thread(target=run, daemon=True).start()

    def close(self) -> None:
        """Take the file away: what it says is no longer so."""
        self._ended.set()
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def _of_hardware(family: MetricFamily, labels: dict[str, str]) -> dict[str, str]:
    return {**labels, "hw_type": "gpu"} if family.name.startswith("hw_") else labels
