"""A run's numbers for Prometheus, from the lines of its log; needs the ``metrics`` extra."""

from typing import Any

from underclock.errors import NotSupportedError
from underclock.records.runs import AskLine, Line, StepLine

_MISSING = "pip install 'underclock[metrics]'"


class Metrics:
    """Counters and gauges, in a registry of their own.

    Args:
        registry: Of prometheus-client's; by default a new one.

    Raises:
        NotSupportedError: prometheus-client is not installed.
    """

    def __init__(self, registry: Any = None) -> None:  # noqa: ANN401 - the library is optional
        self._library = _library()
        self.registry = self._library.CollectorRegistry() if registry is None else registry
        self._steps = self._counter("steps", "Steps that ended", "state")
        self._joules = self._counter("energy_joules", "Energy of those whose energy is known")
        self._asks = self._counter("asks", "Clocks that were asked for", "domain")
        self._planned = self._counter("planned_changes", "Changes in steps that were seen closely")
        self._hits = self._counter("hits", "Of those, changes within a millisecond of their launch")
        self._overruled = self._counter("overruled_locks", "Locks that the driver overruled")
        self._step_s = self._gauge("step_seconds", "What the last step took")
        self._power_w = self._gauge("power_watts", "Mean power in the last step")
        self._core_mhz = self._gauge("core_megahertz", "Mean core clock in the last step")
        self._temperature_c = self._gauge("temperature_celsius", "Temperature in the last step")

    def serve(self, port: int) -> None:
        """Answer scrapes on this machine alone, by a thread.

        Raises:
            NotSupportedError: The port is taken.
        """
        try:
            self._library.start_http_server(port, addr="127.0.0.1", registry=self.registry)
        except OSError as exc:
            raise NotSupportedError(
                f"cannot serve metrics on port {port}: {exc.strerror}", hint="name another port"
            ) from exc

    def write(self, line: Line) -> None:
        """Count a line of the log."""
        if isinstance(line, AskLine):
            self._asks.labels(gpu=line.gpu, domain=line.domain).inc()
        if not isinstance(line, StepLine):
            return
        self._steps.labels(gpu=line.gpu, state=line.state).inc(line.steps)
        for counter, value in (
            (self._joules, None if line.energy_j is None else line.steps * line.energy_j),
            (self._planned, None if line.hits is None else line.planned),
            (self._hits, line.hits),
            (self._overruled, len(line.overruled)),
        ):
            if value is not None:
                counter.labels(gpu=line.gpu).inc(value)
        for gauge, reading in (
            (self._step_s, line.time_s),
            (self._power_w, line.power_w),
            (self._core_mhz, line.core_mhz),
            (self._temperature_c, line.temperature_c),
        ):
            if reading is not None:
                gauge.labels(gpu=line.gpu).set(reading)

    def _counter(self, name: str, words: str, *labels: str) -> Any:  # noqa: ANN401
        return self._made("Counter", name, words, *labels)

    def _gauge(self, name: str, words: str) -> Any:  # noqa: ANN401
        return self._made("Gauge", name, words)

    def _made(self, kind: str, name: str, words: str, *labels: str) -> Any:  # noqa: ANN401
        make = getattr(self._library, kind)
        return make(f"underclock_{name}", words, ["gpu", *labels], registry=self.registry)


def _library() -> Any:  # noqa: ANN401
    try:
        import prometheus_client  # noqa: PLC0415 - an extra
    except ImportError as exc:
        raise NotSupportedError("metrics need prometheus-client", hint=_MISSING) from exc
    return prometheus_client
