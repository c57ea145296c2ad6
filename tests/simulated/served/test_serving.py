"""Leases of served GPUs: who has one, when it ends, and what is put back then."""

import contextlib
import json
import os
import select
import signal
import socket as sockets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hostile import as_found, connect, ending, framed, named_peer
from underclock.app import main
from underclock.errors import DataError, DeviceError, NotPermittedError, UsageError
from underclock.hw.clock import SystemClock
from underclock.hw.leased import HELPER, Helper, HelperGoneError, LeasedGpu, served_by
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import READ_ONLY, nvml_session
from underclock.hw.settable import SettableNvmlGpu, Setting
from underclock.hw.ways_to_set import WayName, settable_gpu, ways
from underclock.hw.wire import Gone, Message, Reader, listening, send
from underclock.runtime.conductor.leases import SILENT_S, LeaseRules, Owners, Terms
from underclock.runtime.conductor.serving import FIRST_S, IDLE_S, REST_S, Service
from underclock.runtime.undo.ownership import Ownership
from underclock.testing import Control, Served

_LIMIT_S = 200.0

Comes = Callable[[Callable[[], bool]], None]


@dataclass
class _Ahead:
    """The machine's clock, as much ahead as a test says."""

    by_s: float = 0.0

    def now_s(self) -> float:
        return SystemClock().now_s() + self.by_s

    def sleep_s(self, duration_s: float) -> None:
        SystemClock().sleep_s(duration_s)


@dataclass
class _Serving:
    """A service in a thread of this process."""

    path: Path
    clock: _Ahead = field(default_factory=_Ahead)
    said: list[str] = field(default_factory=list)
    computing: set[int] = field(default_factory=set)

    def poke(self) -> None:
        """Have it look at the time."""
        with contextlib.suppress(DeviceError):
            served_by(str(self.path))


@pytest.fixture
def serving(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Serving]:
    del served
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    made = _Serving(tmp_path / "h")
    monkeypatch.setenv(HELPER, str(made.path))
    wakes, wake = os.pipe()
    with nvml_session(), listening(made.path) as server:
        gpus = {gpu.uuid(): SettableNvmlGpu(gpu.uuid()) for gpu in (NvmlGpu(0), NvmlGpu(1))}
        terms = Terms(
            folder=folder,
            clock=made.clock,
            tell=made.said.append,
            owners=Owners(LeaseRules(), uid=os.getuid(), computing=lambda _uuid: {*made.computing}),
            limit_s=_LIMIT_S,
        )
        service = Service(gpus, terms, pid=7, uid=os.getuid(), peer=named_peer)
        thread = threading.Thread(target=service.run, args=(server, wakes))
        thread.start()
        try:
            yield made
        finally:
            os.write(wake, b"!")
            thread.join()
            os.close(wake)
            os.close(wakes)


@pytest.fixture
def leased(serving: _Serving) -> Iterator[LeasedGpu]:
    made = LeasedGpu(NvmlGpu(1).uuid(), str(serving.path))
    yield made
    made.close()


def test_what_was_set_under_a_lease_is_put_back_when_it_ends(
    leased: LeasedGpu, serving: _Serving, served: Served, comes: Comes
) -> None:
    gpu = served.gpus[1]
    leased.write(Setting.CORE, 900.0)
    leased.write(Setting.MEMORY, (5001, 9501))
    leased.write(Setting.LIMIT, 300.0)
    assert (gpu.core_lock, gpu.mem_lock, gpu.limit_w) == ((900, 900), (5001, 9501), 300.0)
    assert leased.read(Setting.LIMIT) == 300.0
    assert served_by(str(serving.path))["leases"] == {
        leased.uuid: {"pid": os.getpid(), "uid": os.getuid()}
    }
    leased.write(Setting.MEMORY, None)
    assert gpu.mem_lock is None

    leased.close()
    comes(lambda: as_found(gpu))
    comes(lambda: any("has ended" in line for line in serving.said))
    leased.write(Setting.CORE, 600.0)  # under a new lease
    assert gpu.core_lock == (600, 600)


def test_the_end_of_a_process_ends_its_leases(
    serving: _Serving, served: Served, comes: Comes
) -> None:
    program = """
import os, signal
from underclock.hw.leased import LeasedGpu
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.settable import Setting
with nvml_session():
    gpu = LeasedGpu(NvmlGpu(1).uuid(), os.environ["UNDERCLOCK_HELPER"])
    gpu.write(Setting.CORE, 900.0)
    gpu.write(Setting.LIMIT, 300.0)
    child = os.fork()  # it keeps the connection open
    if child == 0:
        signal.pause()
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    del serving
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert process.wait(30) == -signal.SIGKILL
    comes(lambda: as_found(served.gpus[1]))
    os.kill(child, signal.SIGKILL)


def test_a_gpu_has_one_owner_who_is_named(leased: LeasedGpu, serving: _Serving) -> None:
    leased.write(Setting.CORE, 900.0)
    other = LeasedGpu(leased.uuid, str(serving.path))
    with pytest.raises(UsageError, match=f"is leased to process {os.getpid()} of user"):
        other.write(Setting.CORE, 600.0)
    next_gpu = LeasedGpu(NvmlGpu(0).uuid(), str(serving.path))
    next_gpu.write(Setting.CORE, 600.0)  # each GPU for itself
    leased.close()
    other.write(Setting.CORE, 600.0)  # who comes next need not wait
    for gpu in (other, next_gpu):
        gpu.close()


def test_an_owner_who_says_nothing_loses_its_lease(
    serving: _Serving, served: Served, comes: Comes
) -> None:
    helper, uuid = Helper(str(serving.path)), NvmlGpu(0).uuid()
    helper.ask({"do": "lease", "gpu": uuid})
    helper.ask({"do": "set", "gpu": uuid, "setting": "core", "value": 900})
    serving.clock.by_s += SILENT_S / 2
    helper.ask({"do": "beat"})
    serving.clock.by_s += SILENT_S / 2 + 0.1
    serving.poke()
    assert served.gpus[0].core_lock == (900, 900)
    serving.clock.by_s += SILENT_S
    serving.poke()
    comes(lambda: as_found(served.gpus[0]))
    with pytest.raises(HelperGoneError):
        helper.ask({"do": "beat"})
    helper.close()
    comes(lambda: any("said nothing" in line for line in serving.said))


def test_a_lease_has_a_limit(serving: _Serving, served: Served, comes: Comes) -> None:
    with contextlib.closing(Helper(str(serving.path))) as helper:
        uuid = NvmlGpu(1).uuid()
        helper.ask({"do": "lease", "gpu": uuid})
        core = {"do": "set", "gpu": uuid, "setting": "core", "value": 900}
        helper.ask(core)
        for _ in range(100):
            assert served.gpus[1].core_lock == (900, 900)
            serving.clock.by_s += _LIMIT_S / 100
            helper.ask({"do": "beat"})
        comes(lambda: as_found(served.gpus[1]))
        comes(lambda: any("which is the limit" in line for line in serving.said))
        with pytest.raises(NotPermittedError, match="has no lease") as caught:
            helper.ask(core)
        assert "which is the limit" in caught.value.hint


class _Member:
    """A client of another user.

    Args:
        serving: Of whom.
        uid: Who it is.
    """

    def __init__(self, serving: _Serving, uid: int) -> None:
        self._connection = connect(serving.path, uid)
        self._reader = Reader(self._connection)

    def ask(self, do: str, **words: object) -> Message:
        send(self._connection, {"do": do, **words})
        return self._reader.receive()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def member(serving: _Serving) -> Iterator[Callable[[int], _Member]]:
    with contextlib.ExitStack() as all_of_them:
        yield lambda uid: all_of_them.enter_context(contextlib.closing(_Member(serving, uid)))


def test_who_does_not_own_a_gpu_is_refused_and_told_why(
    serving: _Serving, member: Callable[[int], _Member], served: Served
) -> None:
    uuid = NvmlGpu(1).uuid()
    serving.computing = {2001}
    stranger, owner = member(2000), member(2001)
    answer = stranger.ask("lease", gpu=uuid)
    assert answer["kind"] == "NotPermittedError"
    assert "not known to be user 2000's" in str(answer["error"])
    assert stranger.ask("set", gpu=uuid, setting="core", value=900)["kind"] == "NotPermittedError"
    assert "silent_s" in owner.ask("lease", gpu=uuid)
    assert owner.ask("set", gpu=uuid, setting="core", value=900) == {}
    assert served.gpus[1].core_lock == (900, 900)


def test_a_lease_ends_when_the_gpu_is_another_users(
    serving: _Serving, member: Callable[[int], _Member], served: Served, comes: Comes
) -> None:
    uuid = NvmlGpu(1).uuid()
    first, second = member(2000), member(2001)
    first.ask("lease", gpu=uuid)  # nobody computes there yet
    first.ask("set", gpu=uuid, setting="core", value=900)
    assert "is leased to" in str(second.ask("lease", gpu=uuid)["error"])
    serving.computing = {2001}
    assert "silent_s" in second.ask("lease", gpu=uuid)  # who owns it need not wait
    assert as_found(served.gpus[1])
    second.ask("set", gpu=uuid, setting="core", value=600)
    serving.computing = {2002}
    serving.clock.by_s += 2.1
    comes(lambda: any("no longer user 2001's" in line for line in serving.said))
    assert as_found(served.gpus[1])


def test_who_computes_nothing_has_a_gpu_for_a_while_only(
    serving: _Serving, member: Callable[[int], _Member], comes: Comes
) -> None:
    uuid, start_s = NvmlGpu(1).uuid(), LeaseRules().start_s
    idler = member(2000)
    assert "silent_s" in idler.ask("lease", gpu=uuid)
    while serving.clock.by_s < start_s:
        serving.clock.by_s += 2.0
        idler.ask("beat")
    serving.clock.by_s += 2.0
    comes(lambda: any("computes nothing there" in line for line in serving.said))
    assert "computed nothing there" in str(idler.ask("lease", gpu=uuid)["error"])
    assert "silent_s" in member(2001).ask("lease", gpu=uuid)  # another may try
    serving.computing = {2000}
    assert "silent_s" in member(2000).ask("lease", gpu=uuid)
    serving.computing = set()


@pytest.mark.slow
def test_an_undo_that_fails_is_tried_again(
    leased: LeasedGpu, serving: _Serving, served: Served, control: Control, comes: Comes
) -> None:
    leased.write(Setting.CORE, 900.0)
    control.fault("permission_revoked")
    leased.close()
    comes(lambda: any("STAYS set" in line for line in serving.said))
    with pytest.raises(DeviceError, match="still has what its last owner had set"):
        leased.write(Setting.CORE, 600.0)
    leased.close()
    control.heal()
    comes(lambda: as_found(served.gpus[1]))


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"do": "lease", "gpu": "GPU-nobody"}, "is not served here"),
        ({"do": "lease"}, "missing required field `gpu`"),
        ({"do": "set", "gpu": "GPU-1", "setting": "core", "value": 900}, "is not served here"),
        ({"do": "beat", "gpu": "GPU-1"}, "unknown field `gpu`"),
        ({"do": "nothing"}, "Invalid value 'nothing'"),
        ({}, "missing required field `do`"),
    ],
)
def test_what_makes_no_sense_is_refused(
    message: dict[str, object], words: str, serving: _Serving
) -> None:
    with contextlib.closing(Helper(str(serving.path))) as helper:
        with pytest.raises((UsageError, NotPermittedError), match=words):
            helper.ask(message)
        helper.ask({"do": "beat"})  # and ends nothing


def test_what_cannot_be_set_is_refused(serving: _Serving, served: Served) -> None:
    uuid = NvmlGpu(0).uuid()
    with contextlib.closing(Helper(str(serving.path))) as helper:
        helper.ask({"do": "lease", "gpu": uuid})
        with pytest.raises(UsageError, match="leased to this process already"):
            helper.ask({"do": "lease", "gpu": uuid})
        for setting, value, words in (
            ("voltage", 1.0, "Invalid enum value 'voltage'"),
            ("core", -1.0, "no value"),
            ("core", 1e30, "no value"),
            ("core", [1, 10**30], "no value"),
            ("core", "900", "Expected .* got `str`"),
            ("core", [1, 2, 3], "Expected `array` of length 2"),
            ("limit", None, "is no limit"),
            ("limit", [1, 2], "is no limit"),
            ("limit", 10.0, "Invalid Argument"),
        ):
            with pytest.raises(UsageError, match=words):
                helper.ask({"do": "set", "gpu": uuid, "setting": setting, "value": value})
    assert as_found(served.gpus[0])


@pytest.mark.parametrize(
    ("sent", "ends"),
    [
        (b"\xff\xff\xff\xff", True),
        (framed(b"{]"), True),
        (framed(b"\xff" * 9), True),
        (framed(b"[" * 4000), False),
        (framed(b'{"do":"beat","x":' + b"[" * 4000), False),
        (framed(b'{"do":"set","gpu":"g","setting":"core","value":Infinity}'), True),
        (framed(b'{"do":"set","gpu":"g","setting":"core","value":1e400}'), False),
        (framed(b'{"do":"set","gpu":"g","setting":"core","value":1' + b"0" * 400 + b"}"), False),
        (framed(b"[]"), False),
        (framed(b'{"do":{"do":"beat"}}'), False),
    ],
)
def test_every_fault_is_answered_and_nobody_else_has_the_harm(
    sent: bytes, *, ends: bool, leased: LeasedGpu, serving: _Serving, served: Served
) -> None:
    leased.write(Setting.CORE, 900.0)
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as other:
        other.connect(str(serving.path))
        other.sendall(sent)
        reader = Reader(other)
        answer = reader.receive()
        assert answer["kind"] == "UsageError"
        assert answer.get("ends", False) is ends
        if ends:
            with pytest.raises(Gone):
                reader.receive()
        else:
            send(other, {"do": "beat"})
            assert reader.receive() == {}
    assert served_by(str(serving.path))["leases"][leased.uuid]["pid"] == os.getpid()
    assert served.gpus[1].core_lock == (900, 900)


@pytest.mark.parametrize(
    ("sent", "within_s", "why"),
    [
        (b"", FIRST_S, "asked for nothing within"),
        (framed(b'{"do":"beat"}')[:-3], REST_S, "ends no message within"),
        (framed(b'{"do":"beat"}') + b"\0", REST_S, "ends no message within"),
        (framed(b'{"do":"beat"}'), IDLE_S, "had no lease for"),
    ],
)
def test_who_waits_loses_its_connection_and_is_told_why(
    sent: bytes, within_s: float, why: str, serving: _Serving
) -> None:
    with connect(serving.path, os.getuid()) as other:
        other.sendall(sent)
        serving.poke()
        serving.clock.by_s += within_s - 1.0
        serving.poke()
        assert not select.select([other], [], [], 0.0)[0] or b"ends" not in other.recv(4096)
        serving.clock.by_s += 1.1
        serving.poke()
        assert why in ending(other)


def test_a_socket_that_everybody_may_write_to_is_refused(serving: _Serving) -> None:
    serving.path.chmod(0o666)
    with pytest.raises(NotPermittedError, match="every user may write"):
        Helper(str(serving.path))


def test_read_only_mode_closes_leases_too(
    leased: LeasedGpu, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(READ_ONLY, "1")
    with pytest.raises(NotPermittedError, match=READ_ONLY):
        leased.write(Setting.CORE, 900.0)
    assert as_found(served.gpus[1])


def test_the_first_way_that_works_is_taken(serving: _Serving) -> None:
    del serving
    names = {way.name: way for way in ways()}
    assert list(names) == list(WayName)
    assert names[WayName.DIRECT].works
    assert names[WayName.SERVICE].works
    assert not names[WayName.ZEUSD].works
    assert "simulated" in names[WayName.ZEUSD].why
    assert isinstance(settable_gpu(NvmlGpu().uuid()), SettableNvmlGpu)


def test_doctor_lists_the_ways(serving: _Serving, capsys: pytest.CaptureFixture[str]) -> None:
    del serving
    main(["doctor", "--gpu", "nvml:0", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [way["name"] for way in found["ways"]] == list(WayName)
    assert "directly" in found["permission"]
    main(["doctor", "--gpu", "nvml:0"])
    assert "underclock serve: yes" in capsys.readouterr().out


def test_where_no_journal_can_be_written_nothing_is_set(
    leased: LeasedGpu, serving: _Serving, served: Served
) -> None:
    leased.write(Setting.CORE, 900.0)
    journal = serving.path.parent / "run" / f"{leased.uuid}.journal"
    journal.unlink()
    (journal / "within").mkdir(parents=True)
    with pytest.raises(DataError, match="so nothing is set: Is a directory"):
        leased.write(Setting.MEMORY, 5001.0)
    assert served.gpus[1].mem_lock is None
    leased.close()


def test_another_underclock_keeps_its_gpu(serving: _Serving) -> None:
    uuid = NvmlGpu(0).uuid()
    lock = Ownership.take(serving.path.parent / "run", uuid)
    lock.name(os.getpid())
    gpu = LeasedGpu(uuid, str(serving.path))
    with pytest.raises(UsageError, match="is set by another Underclock"):
        gpu.write(Setting.CORE, 900.0)
    lock.release()
