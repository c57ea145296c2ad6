"""What one client of `underclock serve` does ends nobody else's lease, and holds nobody up."""

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import hostile
from hostile import Hostile, connect, ending, framed
from underclock.hw.clock import SystemClock
from underclock.hw.leased import HEARTBEAT_S, Helper, HelperGoneError
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.simulated.device import VirtualGpu
from underclock.hw.wire import Reader, send
from underclock.runtime.conductor.leases import SILENT_S
from underclock.runtime.conductor.serving import MOST, MOST_OF_USER
from underclock.runtime.undo.ownership import Ownership
from underclock.testing import Served

Comes = Callable[..., None]
_MESSAGES = int(os.environ.get("UNDERCLOCK_FUZZ", "1000"))
"""How many a fuzzer sends: 100000 take some minutes."""
_SEED = int(os.environ.get("UNDERCLOCK_FUZZ_SEED", "26"))


@dataclass
class _Honest:
    """A client that holds a lease, and times the answers to its heartbeats."""

    helper: Helper
    gpu: VirtualGpu
    waits_s: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def live(self, ended: threading.Event) -> None:
        """Beat, and look whether the clocks it asked for are in force."""
        clock = SystemClock()
        while not ended.wait(0.1):
            before_s = clock.now_s()
            try:
                self.helper.ask({"do": "beat"})
            except HelperGoneError as exc:
                self.lost.append(str(exc))
                return
            self.waits_s.append(clock.now_s() - before_s)
            if self.gpu.core_lock != (900, 900):
                self.lost.append(f"the clocks are {self.gpu.core_lock}")
                return


@dataclass
class _Attacked:
    """A service, and an honest client that has a lease of its second GPU."""

    path: Path
    uuids: list[str]
    process: subprocess.Popen[bytes]
    honest: _Honest

    def still_serves(self) -> None:
        """Check that the honest client has lost nothing, and that others are served."""
        assert self.process.poll() is None
        assert not self.honest.lost
        assert self.honest.waits_s
        assert max(self.honest.waits_s) < SILENT_S - HEARTBEAT_S
        with contextlib.closing(Helper(str(self.path))) as other:
            leases = other.ask({"do": "who"})["leases"]
            assert leases[self.uuids[1]]["pid"] == os.getpid()


@pytest.fixture
def attacked(served: Served, tmp_path: Path, comes: Comes) -> Iterator[_Attacked]:
    (tmp_path / "run").mkdir(mode=0o700)
    path = tmp_path / "h"
    with subprocess.Popen(
        [sys.executable, hostile.__file__, str(path), str(tmp_path / "run")]
    ) as process:
        comes(path.exists, 20.0)
        with nvml_session():
            uuids = [NvmlGpu(index).uuid() for index in range(2)]
        with contextlib.closing(Helper(str(path))) as helper:
            helper.ask({"do": "lease", "gpu": uuids[1]})
            helper.ask({"do": "set", "gpu": uuids[1], "setting": "core", "value": 900})
            honest, ended = _Honest(helper, served.gpus[1]), threading.Event()
            thread = threading.Thread(target=honest.live, args=(ended,))
            thread.start()
            try:
                yield _Attacked(path, uuids, process, honest)
            finally:
                ended.set()
                thread.join()
                process.send_signal(signal.SIGTERM)
                assert process.wait(20) == 0


@pytest.mark.slow
def test_a_fuzzer_ends_nobody_elses_lease(
    attacked: _Attacked, served: Served, tmp_path: Path, comes: Comes
) -> None:
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    clock = SystemClock()
    begun_s = clock.now_s()
    with contextlib.closing(Hostile(attacked.path, attacked.uuids, _SEED)) as enemies:
        made = enemies.done
        while made["messages"] < _MESSAGES or made["connections"] < _MESSAGES // 100:
            enemies.act(connections=_MESSAGES // 100)
            clock.sleep_s(0.001)
            assert not attacked.honest.lost
        took_s = clock.now_s() - begun_s
        attacked.still_serves()
        assert made["faults answered"] > _MESSAGES / 100
    comes(lambda: served.gpus[0].core_lock is None)
    with contextlib.closing(Helper(str(attacked.path))) as other:
        comes(lambda: attacked.uuids[0] not in other.ask({"do": "who"})["leases"])
        other.ask({"do": "lease", "gpu": attacked.uuids[0]})
        other.ask({"do": "set", "gpu": attacked.uuids[0], "setting": "core", "value": 600})
        assert served.gpus[0].core_lock == (600, 600)
    os.close(folder)
    waits_s = sorted(attacked.honest.waits_s)
    told = {
        "seed": _SEED,
        "took_s": round(took_s, 1),
        **made,
        "heartbeats": len(waits_s),
        "median_ms": round(1e3 * waits_s[len(waits_s) // 2], 2),
        "longest_ms": round(1e3 * waits_s[-1], 2),
        "service_mib": _resident_mib(attacked.process.pid),
        "load": os.getloadavg(),
    }
    print(json.dumps(told))  # noqa: T201 - `pytest -s` shows it: docs/evidence/serve.md


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * resource.getpagesize() / 2**20, 1)


@pytest.mark.slow
def test_who_reads_no_answers_is_dropped_and_not_waited_for(attacked: _Attacked) -> None:
    clock = SystemClock()
    begun_s = clock.now_s()
    with contextlib.ExitStack() as all_of_them:
        floods = [all_of_them.enter_context(connect(attacked.path, 2000)) for _ in range(20)]
        for each in floods:
            each.setblocking(False)
        left = set(floods)
        while left:
            for each in list(left):
                try:
                    each.send(framed(b'{"do":"who"}') * 100)
                except BlockingIOError:
                    pass
                except OSError:
                    left.remove(each)
            assert clock.now_s() - begun_s < 20.0
            clock.sleep_s(0.01)
    attacked.still_serves()


@pytest.mark.slow
def test_idle_connections_keep_nobody_out(attacked: _Attacked, comes: Comes) -> None:
    with contextlib.ExitStack() as all_of_them:

        def enter(uid: int) -> socket.socket:
            return all_of_them.enter_context(connect(attacked.path, uid))

        first = [enter(2000) for _ in range(MOST_OF_USER)]
        assert f"user 2000 has {MOST_OF_USER} connections" in ending(enter(2000))
        for uid in range(2001, 2000 + MOST // MOST_OF_USER):
            for _ in range(MOST_OF_USER):
                enter(uid)
        # Root's honest client is one of those: of the last user one was displaced, or refused.
        newcomer = enter(3000)
        send(newcomer, {"do": "lease", "gpu": attacked.uuids[0]})
        assert "silent_s" in Reader(newcomer).receive()
        send(first[-1], {"do": "beat"})
        comes(lambda: bool(attacked.honest.waits_s))  # it has been answered since it began
        attacked.still_serves()
    comes(lambda: not attacked.honest.lost)


@pytest.mark.slow
def test_a_lease_that_takes_long_to_arm_holds_nobody_up(attacked: _Attacked) -> None:
    lock = Ownership.take(attacked.path.parent / "run", attacked.uuids[0])
    before = len(attacked.honest.waits_s)
    with connect(attacked.path, 2000) as other:
        for _ in range(2):  # each waits a second for the lock
            send(other, {"do": "lease", "gpu": attacked.uuids[0]})
            assert "is set by another Underclock" in str(Reader(other).receive()["error"])
    lock.release()
    assert len(attacked.honest.waits_s) >= before + 8  # one in 0.1 s; two, were it held up
    attacked.still_serves()
