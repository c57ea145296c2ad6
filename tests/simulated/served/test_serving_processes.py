"""`underclock serve` as a process: its end, a kill, and users who may not set clocks themselves."""

import contextlib
import grp
import os
import signal
import socket as sockets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hostile import as_found
from underclock.errors import DeviceError, NotPermittedError, UsageError
from underclock.hw.clock import SystemClock
from underclock.hw.leased import HELPER, Helper, HelperGoneError, LeasedGpu
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import READ_ONLY, SIMULATOR, nvml_session
from underclock.hw.settable import SettableNvmlGpu, Setting
from underclock.hw.ways_to_set import settable_gpu, ways
from underclock.hw.wire import listening
from underclock.runtime.conductor.leases import LeaseRules, Owners, Terms
from underclock.runtime.conductor.serving import Service, serve
from underclock.runtime.undo.ownership import RUNTIME_DIR
from underclock.testing import Served, served_gpus, simulated_driver

Comes = Callable[[Callable[[], bool]], None]


def test_the_end_of_the_service_ends_every_lease(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "run"))
    path = tmp_path / "h"
    service = subprocess.Popen(
        [sys.executable, "-m", "underclock", "serve", "--socket", str(path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert service.stderr is not None
    with service.stderr as said, nvml_session():
        assert "serving 2 GPUs" in said.readline()
        gpu = LeasedGpu(NvmlGpu(0).uuid(), str(path))
        gpu.write(Setting.CORE, 900.0)
        assert served.gpus[0].core_lock == (900, 900)
        service.terminate()
        assert service.wait(10) == 0
        assert as_found(served.gpus[0])
        assert "the service ends" in said.read()
        with pytest.raises(HelperGoneError):
            gpu.write(Setting.CORE, 900.0)
    assert not path.exists()


def test_a_service_that_is_killed_leaves_nothing_behind(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch, comes: Comes
) -> None:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "run"))
    path = tmp_path / "h"
    service = subprocess.Popen(
        [sys.executable, "-m", "underclock", "serve", "--socket", str(path)],
        stderr=subprocess.DEVNULL,
    )
    comes(path.exists)
    with nvml_session():
        gpu = LeasedGpu(NvmlGpu(0).uuid(), str(path))
        gpu.write(Setting.CORE, 900.0)
        service.kill()
        service.wait()
        comes(lambda: as_found(served.gpus[0]))
        gpu.close()


def test_a_service_of_nobody_is_said(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="nobody serves clocks") as caught:
        Helper(str(tmp_path / "nobody"))
    assert "underclock serve --group" in caught.value.hint
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as dead:
        dead.bind(str(tmp_path / "dead"))
        (tmp_path / "dead").chmod(0o600)
        with pytest.raises(DeviceError, match="nobody serves clocks"):
            Helper(str(tmp_path / "dead"))


def test_where_no_way_is_open_each_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HELPER, str(tmp_path / "nobody"))
    with simulated_driver("a40", root=False), nvml_session():
        with pytest.raises(NotPermittedError, match="CAP_SYS_ADMIN") as caught:
            settable_gpu(NvmlGpu().uuid())
        assert "nobody serves clocks" in str(caught.value)
        assert "zeusd" in str(caught.value)
    with simulated_driver("a40", read_only=True), nvml_session():
        assert {way.why for way in ways()} == {f"{READ_ONLY} is set"}


def test_who_may_not_set_clocks_cannot_serve_them(tmp_path: Path) -> None:
    with (
        simulated_driver("a40", root=False),
        pytest.raises(NotPermittedError, match="may not set clocks itself"),
    ):
        serve(tmp_path / "h", tell=print)
    with simulated_driver("a40"), pytest.raises(UsageError, match="no group 'nobody-at-all'"):
        serve(tmp_path / "h", group="nobody-at-all", tell=print)
    assert not (tmp_path / "h").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a while")
def test_a_user_without_permission_goes_through_the_service(
    monkeypatch: pytest.MonkeyPatch, comes: Comes
) -> None:
    nobody = 65534
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "run").mkdir(mode=0o700)
        monkeypatch.setenv(SIMULATOR, str(folder / "s"))
        monkeypatch.setenv(HELPER, str(folder / "h"))
        wakes, wake = os.pipe()
        with (
            served_gpus("rtx3080ti", folder / "s", everyone=True) as served,
            nvml_session(),
            listening(folder / "h", mode=0o660, gid=nobody) as server,
        ):
            uuid = NvmlGpu().uuid()
            terms = Terms(
                folder=folder / "run",
                clock=SystemClock(),
                tell=lambda _line: None,
                owners=Owners(LeaseRules(), uid=0),
            )
            service = Service({uuid: SettableNvmlGpu(uuid)}, terms, pid=1, uid=0)
            thread = threading.Thread(target=service.run, args=(server, wakes))
            thread.start()
            pid = os.fork()
            if pid == 0:
                with contextlib.suppress(BaseException):
                    os.setgroups([])
                    os.setresgid(nobody, nobody, nobody)
                    os.setresuid(nobody, nobody, nobody)
                    gpu = settable_gpu(uuid)
                    assert isinstance(gpu, LeasedGpu)
                    gpu.write(Setting.CORE, 900.0)
                    signal.pause()
                os._exit(1)
            comes(lambda: served.gpus[0].core_lock == (900, 900))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            comes(lambda: as_found(served.gpus[0]))
            os.write(wake, b"!")
            thread.join()
        os.close(wake)
        os.close(wakes)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a while")
def test_a_service_of_somebody_else_is_not_trusted(tmp_path: Path) -> None:
    nobody, path = 65534, tmp_path / "h"
    ready, tell = os.pipe()
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as server:
        server.bind(str(path))
        path.chmod(0o600)
        pid = os.fork()
        if pid == 0:
            os.setresuid(nobody, nobody, nobody)
            server.listen(1)  # the kernel notes who listens
            os.write(tell, b"!")
            signal.pause()
        os.read(ready, 1)
        with pytest.raises(NotPermittedError, match=f"user {nobody} answers"):
            Helper(str(path))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    os.close(ready)
    os.close(tell)


_RUN = """
import os, signal, sys
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.runtime.conductor.starting import Conducting
with nvml_session():
    uuid = NvmlGpu().uuid()
options = {uuid: {"core": 900.0, "limit": 300.0}}
work = "underclock.runtime.conductor.process:hold"
conductor = Conducting.start([uuid], work=work, options=options)
conductor.armed()
print("armed", flush=True)
sys.stdin.readline()
conductor.process.send_signal(getattr(signal, sys.argv[1]))
conductor.process.wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a while")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP", "SIGTERM"])
def test_a_conductor_of_a_user_without_permission_leaves_nothing_behind(
    name: str, monkeypatch: pytest.MonkeyPatch, comes: Comes
) -> None:
    nobody = 65534
    try:
        subprocess.run([sys.executable, "-c", ""], user=nobody, check=True)
    except (PermissionError, subprocess.CalledProcessError):
        pytest.skip("other users may not run this Python")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        (folder / "run").mkdir(mode=0o700)
        (folder / "own").mkdir(mode=0o700)
        os.chown(folder / "own", nobody, nobody)
        monkeypatch.setenv(SIMULATOR, str(folder / "s"))
        monkeypatch.setenv(HELPER, str(folder / "h"))
        group = grp.getgrgid(nobody).gr_name
        serving = [sys.executable, "-m", "underclock", "serve", "--group", group]
        with served_gpus("rtx3080ti", folder / "s", everyone=True) as served:
            gpu = served.gpus[0]
            monkeypatch.setenv(RUNTIME_DIR, str(folder / "run"))
            service = subprocess.Popen(serving, stderr=subprocess.DEVNULL)
            comes((folder / "h").exists)
            monkeypatch.setenv(RUNTIME_DIR, str(folder / "own"))
            with subprocess.Popen(
                [sys.executable, "-c", _RUN, name],
                user=nobody,
                group=nobody,
                extra_groups=[],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            ) as user:
                assert user.stdout is not None
                assert user.stdin is not None
                assert user.stdout.readline() == "armed\n"
                assert (gpu.core_lock, gpu.limit_w) == ((900, 900), 300.0)
                user.stdin.write("\n")
                user.stdin.flush()
                comes(lambda: as_found(gpu))
                user.wait(20)
            comes(lambda: not list((folder / "own").glob("*.journal")))
            service.terminate()
            assert service.wait(10) == 0
