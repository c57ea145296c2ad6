"""Numbers of a live run for Prometheus: counted from its log, and answered."""

import builtins
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from underclock.errors import NotSupportedError
from underclock.ledger import hashed
from underclock.records.runs import AskLine, EventLine, StepLine
from underclock.runtime.controller.log import Metrics

_ID = f'gpu="0",hw_id="{hashed("GPU-1")}",hw_type="gpu"'


def _step(energy_j: float | None, power_w: float | None = None) -> StepLine:
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
        power_w=power_w,
        overruled=("hot",),
    )


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    made = Metrics(["GPU-1"], 0, lambda _gpu: 25.0)
    made.write(_step(20.0))
    made.write(_step(None))
    made.write(AskLine(gpu=0, at_s=0.0, domain="core", to_mhz=1110, call_s=0.005))
    made.write(EventLine(gpu=0, at_s=0.0, text="noted"))
    yield made
    made.close()


def _scraped(metrics: Metrics) -> str:
    url = f"http://127.0.0.1:{metrics.server.server_port}/metrics"
    with urllib.request.urlopen(url) as answer:
        text: str = answer.read().decode()
    return text


def test_steps_and_asks_are_counted_and_what_is_missing_is_not(metrics: Metrics) -> None:
    lines = _scraped(metrics).splitlines()
    shown = [line for line in lines if line[0] != "#" and "_created" not in line]

    assert shown == [
        f'underclock_steps_total{{{_ID},state="clocks follow the plan"}} 2.0',
        f'underclock_asks_total{{domain="core",{_ID}}} 1.0',
        f"hw_energy_joules_total{{{_ID}}} 25.0",
        f"underclock_step_energy_joules_total{{{_ID}}} 20.0",
        f"underclock_planned_changes_total{{{_ID}}} 8.0",
        f"underclock_hits_total{{{_ID}}} 6.0",
        f"underclock_overruled_locks_total{{{_ID}}} 2.0",
        f"underclock_step_seconds{{{_ID}}} 0.2",
        f"underclock_core_hertz{{{_ID}}} 1.5e+09",
    ]


def test_a_port_that_is_taken_or_none_is_refused(metrics: Metrics) -> None:
    for port in (metrics.server.server_port, 70_000):
        with pytest.raises(NotSupportedError, match=f"cannot serve metrics on port {port}: "):
            Metrics([], port, lambda _gpu: None)


def test_without_prometheus_client_the_line_that_installs_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "prometheus_client":
            raise ModuleNotFoundError(name)
        return known(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(NotSupportedError, match="needs prometheus_client") as raised:
        Metrics([], 0, lambda _gpu: None)
    assert raised.value.hint == "pip install 'underclock[metrics]'"


def test_prometheus_own_linter_finds_nothing(metrics: Metrics) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool here: apt-get install prometheus")
    text = re.sub(r"(?m)^.*_created.*\n", "", _scraped(metrics))
    ended = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
