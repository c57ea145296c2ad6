"""Metrics and dashboard against a real Prometheus, where there is one (Debian: prometheus)."""

import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import underclock
from made_entries import entry, untold
from underclock.app.saved import families
from underclock.hw.clock import SystemClock
from underclock.ledger.openmetrics import OPENMETRICS_TYPE, openmetrics_text, prometheus_text
from underclock.records.runs import AskLine, StepLine
from underclock.runtime.conductor.metrics import Metrics

_DASHBOARD = json.loads(
    (Path(underclock.__file__).parent / "site" / "grafana.json").read_text(encoding="utf-8")
)
_TYPED = {  # what a reader of the dashboard chose
    "job": ".*",
    "evidence": "measured",
    "price": "0.25",
    "currency": "EUR",
    "grid": "380",
    "pue": "1.3",
    "__rate_interval": "5s",
    "source": "prometheus",
}
_FIRST_S = 60.0  # within which it has scraped twice, on a busy machine

Ask = Callable[[str], list[Any]]


def _panels() -> list[dict[str, Any]]:
    return [panel for panel in _DASHBOARD["panels"] if panel["type"] != "row"]


def _expressions() -> list[str]:
    return [target["expr"] for panel in _panels() for target in panel["targets"]]


def _with_typed(text: str) -> str:
    return re.sub(r"\$(\w+)", lambda match: _TYPED[match[1]], text)


def _step(number: int) -> StepLine:
    return StepLine(
        gpu=0,
        step=number,
        began_s=0.0,
        time_s=0.1,
        state="clocks follow the plan",
        arm="plan",
        planned=4,
        asked=4,
        hits=3,
        energy_j=20.0,
        core_mhz=1500.0,
        mem_mhz=9251.0,
        power_w=200.0,
        temperature_c=60.0,
        overruled=("hot",),
    )


@pytest.fixture
def live() -> Iterator[Metrics]:
    """Give metrics of a run that goes on."""
    made, ended = Metrics(["GPU-1"]), threading.Event()
    made.energy_j = lambda _gpu: 25.0

    def run() -> None:
        number = 0
        while not ended.wait(0.05):
            made.write(_step(number := number + 1))
            made.write(AskLine(gpu=0, at_s=0.0, domain="core", to_mhz=1110, call_s=0.005))

    thread = threading.Thread(target=run)
    thread.start()
    yield made
    ended.set()
    thread.join()


@pytest.fixture
def ledger_port() -> Iterator[int]:
    """Answer what ``saved --openmetrics`` prints."""
    text = openmetrics_text(families([entry(), untold(gpu="gpu 1")]))

    class _Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", OPENMETRICS_TYPE)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def ask(live: Metrics, ledger_port: int, tmp_path: Path) -> Iterator[Ask]:
    """Run a Prometheus that scrapes both, and give what asks it."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("there is no Prometheus here: apt-get install prometheus")
    ports = [live.serve(0), ledger_port]
    config = tmp_path / "prometheus.yml"
    targets = [f"127.0.0.1:{port}" for port in ports]
    config.write_text(
        json.dumps(  # YAML too
            {
                "global": {"scrape_interval": "1s"},
                "scrape_configs": [
                    {"job_name": "underclock", "static_configs": [{"targets": targets}]}
                ],
            }
        )
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api/v1/query"

    def query(expression: str) -> list[Any]:
        body = urllib.parse.urlencode({"query": expression}).encode()
        try:
            with urllib.request.urlopen(url, body) as answer:
                found: list[Any] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as exc:
            if exc.code == HTTPStatus.SERVICE_UNAVAILABLE:  # it begins
                raise
            raise AssertionError(f"{expression}: {exc.read().decode()}") from exc
        return found

    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            _await_scrapes(query)
            yield query
        finally:
            process.terminate()


def _await_scrapes(query: Ask) -> None:
    clock = SystemClock()
    until_s = clock.now_s() + _FIRST_S
    while clock.now_s() < until_s:
        clock.sleep_s(0.2)
        try:
            if len(query("up == 1")) == 2 and query("rate(underclock_steps_total[5s]) > 0"):
                return
        except urllib.error.URLError:
            continue
    raise AssertionError(f"not scraped twice: {query('up')}")


@pytest.mark.slow
def test_every_query_of_the_dashboard_is_answered_by_what_is_scraped(ask: Ask) -> None:
    for expression in _expressions():
        assert ask(_with_typed(expression)), expression

    (share,) = ask(_with_typed(_expressions()[3]))
    assert float(share["value"][1]) == pytest.approx(0.1)
    (money,) = ask(_with_typed(_expressions()[1]))
    assert float(money["value"][1]) == pytest.approx(0.1 * 0.25 * 1.3)
    (energy,) = ask(_with_typed("underclock_step_energy_joules_total / 20"))
    (steps,) = ask("sum(underclock_steps_total)")
    assert float(energy["value"][1]) == pytest.approx(float(steps["value"][1]), abs=40.0)


def test_prometheus_own_linter_finds_nothing(live: Metrics) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool here: apt-get install prometheus")
    live.write(_step(0))
    for text in (live.text(prometheus_text), prometheus_text(families([entry(), untold()]))):
        ended = subprocess.run(
            [promtool, "check", "metrics"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")


def test_the_dashboard_is_one_that_grafana_can_draw() -> None:
    ids = [panel["id"] for panel in _DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    named = {each["name"] for each in _DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(_DASHBOARD))) == named == set(_TYPED)
    cells: set[tuple[int, int]] = set()
    for panel in _DASHBOARD["panels"]:
        at = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & mine, panel["title"]
        cells |= mine
    for panel in _panels():
        assert panel["type"] in {"stat", "timeseries"}
        assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0


def test_the_dashboard_asks_for_metrics_that_there_are(live: Metrics) -> None:
    live.write(_step(0))
    live.write(AskLine(gpu=0, at_s=0.0, domain="core", to_mhz=1110, call_s=0.005))
    there = live.text(prometheus_text) + prometheus_text(families([entry(), untold()]))
    names = set(re.findall(r"^(\w+)\{", there, re.MULTILINE))
    asked = set(re.findall(r"\b(?:underclock|hw)_[a-z_]+\b", " ".join(_expressions())))

    assert asked - {"hw_type", "hw_id"} <= names
