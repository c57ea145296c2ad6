"""Numbers of a live run for Prometheus, counted from the lines of its log, answered on loopback.

What OpenTelemetry's semantic conventions for hardware name is called as there (``hw.energy``,
``hw.power``, ``hw.temperature``, with ``hw.id`` and ``hw.type``); they know no GPU's clocks.
"""

from collections.abc import Callable, Sequence

from underclock.errors import NotSupportedError
from underclock.ledger.runs import hashed
from underclock.records.runs import AskLine, Line, StepLine

_OF_STEPS: tuple[tuple[str, str, Callable[[StepLine], float | None]], ...] = (
    ("underclock_step_energy_joules_total", "Drawn", lambda s: s.energy_j and s.steps * s.energy_j),
    ("underclock_planned_changes_total", "Seen", lambda s: s.planned * (s.hits is not None)),
    ("underclock_hits_total", "Of those, within 1 ms of their launch", lambda s: s.hits),
    ("underclock_overruled_locks_total", "By the driver", lambda s: len(s.overruled)),
    ("underclock_step_seconds", "The last step took", lambda s: s.time_s),
    ("underclock_core_hertz", "Core clock", lambda s: s.core_mhz and 1e6 * s.core_mhz),
    ("underclock_memory_hertz", "Memory clock", lambda s: s.mem_mhz and 1e6 * s.mem_mhz),
    ("hw_power_watts", "Mean in the last step", lambda s: s.power_w),
    ("hw_temperature_celsius", "In the last step", lambda s: s.temperature_c),
)
"""What a counter (``_total``) adds of a step, and what a gauge shows of the last."""


class Metrics:
    """Counters and gauges of a run's GPUs, answered on a port until it is closed.

    Args:
        energy_j: Returns what a GPU drew so far; ``None`` where that is not known.

    Raises:
        NotSupportedError: The port is taken, or prometheus_client is not installed.
    """

    def __init__(
        self, uuids: Sequence[str], port: int, energy_j: Callable[[int], float | None]
    ) -> None:
        try:
            import prometheus_client as client  # noqa: PLC0415 - only where it is asked for
        except ImportError as exc:
            raise NotSupportedError(
                "--metrics-port needs prometheus_client", hint="pip install 'underclock[metrics]'"
            ) from exc
        registry = client.CollectorRegistry()

        def made(name: str, words: str, *more: str) -> client.Counter | client.Gauge:
            kind = client.Counter if name.endswith("_total") else client.Gauge
            return kind(name, words, ("gpu", "hw_id", "hw_type", *more), registry=registry)

        self._steps = made("underclock_steps_total", "Steps that ended", "state")
        self._asks = made("underclock_asks_total", "Clocks that were asked for", "domain")
        self._drawn = made("hw_energy_joules_total", "Drawn by the GPU")
        self._of_steps = [(made(name, words), of) for name, words, of in _OF_STEPS]
        self._named = [(str(at), hashed(uuid), "gpu") for at, uuid in enumerate(uuids)]
        self._energy_j, self._before_j = energy_j, [0.0] * len(uuids)
        try:
            self.server, _ = client.start_http_server(port, "127.0.0.1", registry)
        except (OSError, OverflowError) as exc:
            raise NotSupportedError(f"cannot serve metrics on port {port}: {exc}") from exc

    def write(self, line: Line) -> None:
        """Count a line of the log."""
        if isinstance(line, AskLine):
            self._asks.labels(*self._named[line.gpu], line.domain).inc()
        elif isinstance(line, StepLine):
            labels, before_j = self._named[line.gpu], self._before_j[line.gpu]
            drawn_j = self._before_j[line.gpu] = self._energy_j(line.gpu) or before_j
            self._drawn.labels(*labels).inc(drawn_j - before_j)
            self._steps.labels(*labels, line.state).inc(line.steps)
            for metric, of in self._of_steps:
                if (value := of(line)) is not None:
                    add = getattr(metric.labels(*labels), "set", metric.labels(*labels).inc)
                    add(value)

    def close(self) -> None:
        """Answer no more."""
        self.server.shutdown()
        self.server.server_close()
