"""Whether this process may set a GPU by itself, which way is taken where not, and zeusd's."""

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from underclock.errors import (
    DeviceError,
    NotPermittedError,
    NotSupportedError,
    UnderclockError,
    UsageError,
)
from underclock.hw.base import SystemClock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import WayName, is_admin, may_set, nvml_session, settable_gpu, ways
from underclock.hw.zeusd import SOCKET, Zeusd, ZeusdGpu
from underclock.testing import SimulatedMachine, simulated_driver
from underclock.units import Domain

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


_EVERYBODY = "         0          0 4294967295\n"


@pytest.mark.parametrize(
    ("capabilities", "uid_map", "admin"),
    [
        ("000001ffffffffff", _EVERYBODY, True),  # root
        ("0000000000200000", _EVERYBODY, True),  # CAP_SYS_ADMIN alone
        ("00000000a80425fb", _EVERYBODY, False),  # root in an ordinary container
        ("0000000000000000", _EVERYBODY, False),  # anybody else
        ("000001ffffffffff", "0 1000 1\n", False),  # root of a user namespace only
    ],
)
def test_it_takes_cap_sys_admin_outside_any_user_namespace(
    capabilities: str, uid_map: str, *, admin: bool
) -> None:
    status = f"Name:\tpython\nCapPrm:\t0000000000000000\nCapEff:\t{capabilities}\n"
    assert is_admin(status, uid_map) == admin
    assert not is_admin("Name:\tpython\n", uid_map)  # it says nothing of capabilities


@pytest.mark.parametrize("root", [True, False])
def test_a_simulated_driver_says_so_itself(*, root: bool) -> None:
    with simulated_driver("a40", root=root), nvml_session():
        assert may_set() == root


def test_zeusd_is_taken_where_nothing_else_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SOCKET, str(tmp_path / "z"))
    with (
        simulated_driver("a40", root=False) as machine,
        nvml_session(),
        serving_zeusd(tmp_path / "z", machine),
    ):
        with pytest.raises(NotPermittedError, match="these are simulated"):
            settable_gpu(NvmlGpu().uuid())
        machine.driver.simulated = False  # as if it were a real one
        assert [way.name for way in ways() if way.works] == [WayName.ZEUSD]
        gpu = settable_gpu(NvmlGpu().uuid())
        assert isinstance(gpu, ZeusdGpu)
        gpu.write(Domain.CORE, 1200.0)
        assert machine.gpus[0].core_lock == (1200, 1200)
        gpu._zeusd.close()  # noqa: SLF001 - it outlives the test otherwise


def test_a_zeusd_that_does_not_answer_is_no_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SOCKET, str(tmp_path / "nobody"))
    with simulated_driver("a40", root=False) as machine, nvml_session():
        machine.driver.simulated = False
        found = {way.name: way for way in ways()}
    assert not any(way.works for way in found.values())
    assert "does not answer" in found[WayName.ZEUSD].why


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeZeusd]:
    with (
        simulated_driver("a40", count=2, root=False) as machine,
        nvml_session(),
        serving_zeusd(tmp_path / "z", machine) as made,
    ):
        yield made


@pytest.fixture
def zeusd(daemon: FakeZeusd, tmp_path: Path) -> Iterator[Zeusd]:
    del daemon
    made = Zeusd(str(tmp_path / "z"))
    yield made
    made.close()


@pytest.fixture
def gpu(zeusd: Zeusd) -> ZeusdGpu:
    return ZeusdGpu(NvmlGpu(1).uuid(), zeusd)


def test_it_sets_what_this_process_may_not(gpu: ZeusdGpu, daemon: FakeZeusd) -> None:
    first, second = daemon.machine.gpus
    gpu.write(Domain.CORE, 1200.0)
    gpu.write(Domain.MEMORY, (5001, 7251))

    assert (second.core_lock, second.mem_lock) == ((1200, 1200), (5001, 7251))
    assert first.core_lock is None
    assert gpu.uuid == NvmlGpu(1).uuid()

    gpu.write(Domain.CORE, None)
    gpu.write(Domain.MEMORY, None)
    assert (second.core_lock, second.mem_lock) == (None, None)


def test_a_daemon_that_ends_is_said_and_one_that_comes_back_is_used(
    gpu: ZeusdGpu, daemon: FakeZeusd, tmp_path: Path
) -> None:
    path = tmp_path / "z"
    gpu.write(Domain.CORE, 1200.0)
    daemon.shutdown()
    daemon.server_close()
    path.unlink()
    SystemClock().sleep_s(4 * IDLE_S)
    with pytest.raises(DeviceError, match="does not answer"):
        gpu.write(Domain.CORE, 1215.0)
    with serving_zeusd(path, daemon.machine):
        gpu.write(Domain.CORE, 1230.0)
    assert daemon.machine.gpus[1].core_lock == (1230, 1230)


def test_one_that_only_reads_is_refused(zeusd: Zeusd, daemon: FakeZeusd) -> None:
    daemon.discovered["enabled_api_groups"] = ["gpu-read"]
    with pytest.raises(NotPermittedError, match="read only") as caught:
        zeusd.discover()
    assert "--enable gpu-control" in caught.value.hint


def test_a_token_is_asked_for_and_sent(
    zeusd: Zeusd, daemon: FakeZeusd, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.discovered["auth_required"], daemon.token = True, "secret"
    with pytest.raises(NotPermittedError, match="asks for a token"):
        zeusd.discover()
    for token, works in (("wrong", False), ("secret", True)):
        monkeypatch.setenv("ZEUSD_TOKEN", token)
        with contextlib.closing(Zeusd(zeusd.path)) as allowed:
            gpu = ZeusdGpu(NvmlGpu(1).uuid(), allowed)
            expected = contextlib.nullcontext() if works else pytest.raises(NotPermittedError)
            with expected:
                gpu.write(Domain.CORE, 1200.0)


@pytest.mark.parametrize(
    ("answer", "kind", "value"),
    [
        ((403, "NVML error: no permission"), NotPermittedError, 1200.0),
        ((404, ""), NotPermittedError, 1200.0),
        ((400, '{"errors": {"5": "NVML error: invalid argument"}}'), UsageError, 1200.0),
        ((400, '{"errors": {"5": "not supported"}}'), NotSupportedError, None),
        ((500, '{"errors": {"5": "NVML error: GPU lost"}}'), DeviceError, 1200.0),
        ((500, "[]"), DeviceError, 1200.0),
    ],
)
def test_what_it_refuses_is_told_in_its_own_words(
    answer: tuple[int, str],
    kind: type[UnderclockError],
    value: float | None,
    gpu: ZeusdGpu,
    daemon: FakeZeusd,
) -> None:
    daemon.fails = answer
    with pytest.raises(kind, match=f"zeusd answered {answer[0]}") as caught:
        gpu.write(Domain.CORE, value)
    assert type(caught.value) is kind


def test_read_only_mode_closes_this_way_too(tmp_path: Path) -> None:
    with (
        simulated_driver("a40", read_only=True) as machine,
        nvml_session(),
        serving_zeusd(tmp_path / "z", machine),
        contextlib.closing(Zeusd(str(tmp_path / "z"))) as zeusd,
    ):
        with pytest.raises(NotPermittedError, match="READ_ONLY"):
            ZeusdGpu(NvmlGpu().uuid(), zeusd).write(Domain.CORE, 1200.0)
        assert machine.gpus[0].core_lock is None
