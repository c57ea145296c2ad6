"""Numbers of a live run for Prometheus: counted from its log, answered, and kept in a file."""

import urllib.request
from pathlib import Path

import pytest

from underclock.errors import NotSupportedError, UsageError
from underclock.ledger.entries import hashed
from underclock.ledger.openmetrics import (
    FamilyKind,
    MetricFamily,
    openmetrics_text,
    prometheus_text,
)
from underclock.records.runs import AskLine, EventLine, StepLine
from underclock.runtime.conductor import metrics as live
from underclock.runtime.conductor.metrics import Metrics

_ID = f'gpu="0",hw_id="{hashed("GPU-1")}"'


def _step(energy_j: float | None) -> StepLine:
    return StepLine(
        gpu=0,
        step=0,
        began_s=0.0,
        time_s=0.2,
        state="clocks follow the plan",
        arm="plan",
        planned=4,
        asked=4,
        hits=3,
        energy_j=energy_j,
        core_mhz=1500.0,
        overruled=("hot",),
    )


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics(["GPU-1"])
    made.energy_j = lambda _gpu: 25.0
    made.write(_step(20.0))
    made.write(_step(None))
    made.write(AskLine(gpu=0, at_s=0.0, domain="core", to_mhz=1110, call_s=0.005))
    made.write(EventLine(gpu=0, at_s=0.0, text="noted"))
    return made


def test_steps_and_asks_are_counted_and_what_is_missing_is_not(metrics: Metrics) -> None:
    lines = [line for line in metrics.text(openmetrics_text).splitlines() if line[0] != "#"]

    assert lines == [
        f'underclock_steps_total{{{_ID},state="clocks follow the plan"}} 2.0',
        f'underclock_asks_total{{{_ID},domain="core"}} 1.0',
        f'hw_energy_joules_total{{{_ID},hw_type="gpu"}} 25.0',
        f"underclock_step_energy_joules_total{{{_ID}}} 20.0",
        f"underclock_planned_changes_total{{{_ID}}} 8.0",
        f"underclock_hits_total{{{_ID}}} 6.0",
        f"underclock_overruled_locks_total{{{_ID}}} 2.0",
        f"underclock_step_seconds{{{_ID}}} 0.2",
        f"underclock_core_hertz{{{_ID}}} 1500000000.0",
    ]


def test_a_scrape_gets_the_form_that_it_asks_for(metrics: Metrics) -> None:
    port = metrics.serve(0)
    found = []
    for accepted in ("application/openmetrics-text;version=1.0.0", "text/plain"):
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/metrics", headers={"Accept": accepted}
        )
        with urllib.request.urlopen(asked) as answer:  # noqa: S310 - our own
            found.append((answer.headers["Content-Type"].partition(";")[0], answer.read().decode()))

    assert found == [
        ("application/openmetrics-text", metrics.text(openmetrics_text)),
        ("text/plain", metrics.text(prometheus_text)),
    ]
    with pytest.raises(NotSupportedError, match=f"port {port}: Address already in use"):
        Metrics([]).serve(port)
    with pytest.raises(NotSupportedError, match="port 70000"):
        Metrics([]).serve(70_000)


def test_a_file_is_kept_while_it_runs(
    metrics: Metrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_FILE_EVERY_S", 0.005)
    path = tmp_path / "run.prom"
    metrics.keep(path)
    while path.read_text() != metrics.text(prometheus_text):
        pass
    metrics.close()

    assert not path.exists()
    with pytest.raises(UsageError, match="there is no folder"):
        metrics.keep(tmp_path / "no" / "run.prom")


def test_labels_and_words_are_escaped_and_empty_families_left_out() -> None:
    odd = MetricFamily("odd", FamilyKind.GAUGE, "", 'back\\slash, "quote", new\nline')
    odd.set(float("inf"), {"name": 'a"b\\c\nd'})
    odd.set(float("nan"), {})
    empty = MetricFamily("empty", FamilyKind.COUNTER, "", "nothing")

    assert openmetrics_text([odd, empty]) == (
        "# TYPE odd gauge\n"
        '# HELP odd back\\\\slash, \\"quote\\", new\\nline\n'
        'odd{name="a\\"b\\\\c\\nd"} +Inf\n'
        "odd NaN\n"
        "# EOF\n"
    )
    assert prometheus_text([odd, empty]).startswith('# HELP odd back\\\\slash, "quote", new\\nline')
