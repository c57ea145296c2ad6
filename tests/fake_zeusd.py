"""A zeusd over simulated GPUs, which answers as the daemon's reference says it does."""

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from underclock.testing import SimulatedMachine

IDLE_S = 0.05
_PARAMETERS = {
    "set_gpu_locked_clocks": {"min_clock_mhz", "max_clock_mhz"},
    "reset_gpu_locked_clocks": set(),
    "set_mem_locked_clocks": {"min_clock_mhz", "max_clock_mhz"},
    "reset_mem_locked_clocks": set(),
}


class FakeZeusd(socketserver.ThreadingUnixStreamServer):
    """The daemon: root, over the GPUs of a simulated machine.

    Attributes:
        machine: Whose GPUs.
        discovered: What it says of itself.
        token: That it asks for.
        fails: Status and body that every write answers with.
        connections: How often somebody connected.
    """

    daemon_threads = True

    def __init__(self, path: Path, machine: SimulatedMachine) -> None:
        super().__init__(str(path), _Handler)
        self.machine = machine
        self.token = ""
        self.fails: tuple[int, str] | None = None
        self.connections = 0
        self.discovered: dict[str, Any] = {
            "gpus": [
                {"id": i + 4, "name": "NVIDIA A40", "pci_address": f"0000:{i + 1:02x}:00.0"}
                for i in range(len(machine.gpus))
            ],
            "cpus": [],
            "enabled_api_groups": ["gpu-control", "gpu-read"],
            "auth_required": False,
        }

    def write(self, name: str, query: dict[str, list[str]]) -> tuple[int, str]:
        """Set something; what is missing in the query is bad input."""
        wanted = _PARAMETERS.get(name)
        if wanted is None:
            return 404, ""
        if set(query) != wanted | {"gpu_ids", "block"} or query["block"] != ["true"]:
            return 400, "Query deserialize error: missing field"
        if self.fails is not None:
            return self.fails
        values = {key: value[0] for key, value in query.items()}
        ids = [gpu["id"] for gpu in self.discovered["gpus"]]
        for text in values["gpu_ids"].split(","):
            if int(text) not in ids:
                return 400, json.dumps({"errors": {text: f"GPU index {text} does not exist."}})
            with self.machine.clock.lock:
                _apply(self.machine.gpus[ids.index(int(text))], name, values)
        return 200, ""


def _apply(gpu: Any, name: str, values: dict[str, str]) -> None:
    bounds = (
        (int(values["min_clock_mhz"]), int(values["max_clock_mhz"]))
        if name.startswith("set")
        else None
    )
    (gpu.lock_core if "gpu_locked" in name else gpu.lock_mem)(bounds)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_S  # it closes connections that rest
    server: FakeZeusd

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_GET(self) -> None:
        found = self.path == "/discover"
        self._answer(200 if found else 404, json.dumps(self.server.discovered) if found else "")

    def do_POST(self) -> None:
        asked = urlsplit(self.path)
        if int(self.headers.get("Content-Length", 0)):
            self._answer(400, "a body is not read")
        elif (
            self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}"
        ):
            self._answer(401, "missing or invalid token")
        else:
            name = asked.path.removeprefix("/gpu/")
            self._answer(*self.server.write(name, parse_qs(asked.query)))

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving_zeusd(path: Path, machine: SimulatedMachine) -> Iterator[FakeZeusd]:
    with FakeZeusd(path, machine) as daemon:
        threading.Thread(target=daemon.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield daemon
        finally:
            daemon.shutdown()
