"""Which user may lease a GPU, by the operator's rules, and which files of rules are believed."""

import os
import subprocess
from pathlib import Path

import pytest

from underclock.errors import NotPermittedError, UsageError
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.settable import UNSEEN, computing, pod_of
from underclock.hw.simulated.work import Neighbour
from underclock.physics.constants import KernelConstants
from underclock.runtime.conductor.leases import LeasePolicy, LeaseRules, Owners, rules_in
from underclock.testing import simulated_driver

_ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can own what others write")
_USER, _OTHER, _SERVES = 65534, 65533, 65532
_STRICT = LeaseRules(start_s=0.0)


def _uuid() -> str:
    return NvmlGpu().uuid()


def _computing(*users: int, rules: LeaseRules = _STRICT) -> Owners:
    """Return owners by process, of GPUs on which those users compute."""
    return Owners(rules, uid=_SERVES, computing=lambda _uuid: set(users))


def _files(folder: Path) -> Owners:
    return Owners(LeaseRules(policy=LeasePolicy.FILE, owners=str(folder)), uid=_SERVES)


def test_by_default_a_gpu_is_whose_processes_compute_on_it() -> None:
    assert LeaseRules().policy is LeasePolicy.PROCESS
    assert _computing(_USER).check("GPU-1", _USER)
    assert _computing(_USER, 0, _SERVES).check("GPU-1", _USER)
    for users in ((_OTHER,), (_OTHER, _USER)):
        with pytest.raises(NotPermittedError, match=f"not known to be user {_USER}'s alone"):
            _computing(*users, rules=LeaseRules()).check("GPU-1", _USER)
        assert _computing(*users).check("GPU-1", 0)
        assert _computing(*users).check("GPU-1", _SERVES)


def test_a_gpu_on_which_nobody_computes_is_nobodys() -> None:
    assert not _computing(rules=LeaseRules()).check("GPU-1", _USER)
    with pytest.raises(NotPermittedError, match="none of its processes") as caught:
        _computing().check("GPU-1", _USER)
    assert "start the job first" in caught.value.hint


def test_a_lease_is_lost_to_the_next_job_and_not_to_a_guest() -> None:
    assert _computing(_USER).sees("GPU-1", _USER)
    assert _computing(_USER, _OTHER).sees("GPU-1", _USER)
    assert _computing().sees("GPU-1", _USER) is None  # between two of its processes
    assert _computing(_OTHER).sees("GPU-1", _USER) is False
    assert _computing(UNSEEN).sees("GPU-1", _USER) is None


def test_whose_processes_cannot_be_seen_may_be_anybodys() -> None:
    with pytest.raises(NotPermittedError, match="processes of somebody unknown compute there"):
        _computing(UNSEEN, rules=LeaseRules()).check("GPU-1", _USER)


def test_the_site_may_name_whose_a_gpu_is(tmp_path: Path) -> None:
    owners = _files(tmp_path)
    file = tmp_path / "GPU-1"
    with pytest.raises(NotPermittedError, match="no file of the operator's") as caught:
        owners.check("GPU-1", _USER)
    assert str(file) in caught.value.hint
    file.write_text(f"{_USER}\n")
    owners.check("GPU-1", _USER)
    assert owners.sees("GPU-1", _USER)
    with pytest.raises(NotPermittedError):
        owners.check("GPU-1", _OTHER)
    file.write_text("")  # the next prolog is only just writing it
    assert owners.sees("GPU-1", _USER) is None
    file.write_text(f"{_OTHER}")
    assert owners.sees("GPU-1", _USER) is False
    file.unlink()
    assert owners.sees("GPU-1", _USER) is False


@pytest.mark.parametrize("what", ["written by others", "rubbish", "pipe", "link"])
def test_a_file_that_others_may_have_written_names_nobody(what: str, tmp_path: Path) -> None:
    file = tmp_path / "GPU-1"
    file.write_text(f"{_USER}")
    match what:
        case "written by others":
            file.chmod(0o666)
        case "rubbish":
            file.write_bytes(b"\xff" * 10_000)
        case "pipe":
            file.unlink()
            os.mkfifo(file)
        case _:
            file.rename(tmp_path / "elsewhere")
            file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotPermittedError):
        _files(tmp_path).check("GPU-1", _USER)


@_ROOT_ONLY
def test_a_file_of_another_user_names_nobody(tmp_path: Path) -> None:
    (tmp_path / "GPU-1").write_text(f"{_USER}")
    os.chown(tmp_path / "GPU-1", _USER, -1)
    with pytest.raises(NotPermittedError):
        _files(tmp_path).check("GPU-1", _USER)


def test_everybody_is_let_in_only_by_name(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('policy = "any"\n')
    Owners(rules_in(file), uid=_SERVES).check("GPU-1", _USER)
    file.write_text('policy = "file"\nowners = "/run/jobs"\n')
    assert rules_in(file) == LeaseRules(policy=LeasePolicy.FILE, owners="/run/jobs")


@pytest.mark.parametrize(
    "text", ['policy = "all"', "policy = ", 'polcy = "any"', "policy = 1", "[" * 9000, "\0"]
)
def test_rules_that_cannot_be_read_start_nothing(text: str, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"serve\.toml does not say who may lease"):
        rules_in(file)


def test_rules_that_others_may_write_start_nothing(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    with pytest.raises(UsageError, match="No such file"):
        rules_in(file)
    file.write_text('policy = "any"')
    file.chmod(0o664)
    with pytest.raises(UsageError, match="others may write to it") as caught:
        rules_in(file)
    assert "'process'" in caught.value.hint


_MINE = "0b8d6e3c-1f2a-4c3d-9e8f-0123456789ab"
_YOURS = "7c1d6e3c-1f2a-4c3d-9e8f-0123456789ab"


def _pods(folder: Path, *computing: int | str, asking: str = _MINE) -> Owners:
    """Return owners of GPUs on which those pods compute; a client's number is a pod's place."""
    (folder / asking).touch(mode=0o644)
    return Owners(
        LeaseRules(policy=LeasePolicy.POD, owners=str(folder)),
        uid=0,
        computing=lambda _uuid, **_: set(computing),
        pod_of=lambda pid: ("", _MINE, _YOURS)[pid],
    )


def test_a_pod_leases_the_gpu_that_it_alone_computes_on_where_it_asks(tmp_path: Path) -> None:
    owners = _pods(tmp_path, _MINE)
    mine, yours = (owners.known_as(pid, 0) for pid in (1, 2))

    assert owners.check("GPU-1", mine)
    assert owners.sees("GPU-1", mine)
    assert not _pods(tmp_path).check("GPU-1", mine)  # nobody computes: for a while
    with pytest.raises(NotPermittedError, match=f"^pod {_YOURS} does not ask") as caught:
        owners.check("GPU-1", yours)
    assert "underclock/clocks: leased" in caught.value.hint
    (tmp_path / _MINE).unlink()
    assert owners.sees("GPU-1", mine) is False
    with pytest.raises(NotPermittedError, match="does not ask"):
        owners.check("GPU-1", mine)


def test_no_pod_leases_what_others_compute_on_and_root_of_one_is_nobody(tmp_path: Path) -> None:
    for others, words in ((_YOURS, f"pod {_MINE}, pod {_YOURS}"), ("", f"no pod, pod {_MINE}")):
        with pytest.raises(NotPermittedError, match=f"processes of {words} compute there"):
            _pods(tmp_path, _MINE, others).check("GPU-1", _MINE)
    for root in (0, ""):  # by number, and outside of any pod
        with pytest.raises(NotPermittedError, match="does not ask"):
            _pods(tmp_path).check("GPU-1", root)


@pytest.mark.parametrize(
    ("path", "pod"),
    [
        ("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/x.scope", "_"),
        ("0::/../../kubepods-besteffort-pod{}.slice/cri-containerd-5a.scope", "_"),
        ("12:cpu:/kubepods/pod{}/5a\n0::/system.slice/pod-like", "-"),
        ("0::/kubepods/pod{}/5a/pod" + _YOURS, "-"),  # a group of its own making
        ("0::/user.slice/podman-17.scope", ""),
    ],
)
def test_a_pod_is_known_by_its_control_group(path: str, pod: str, tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/cgroup").write_text(path.format(_MINE.replace("-", pod or "-")) + "\n")

    assert pod_of(1, tmp_path) == (_MINE if pod else "")


@_ROOT_ONLY
def test_who_computes_is_read_from_the_driver() -> None:
    with (
        simulated_driver("a40") as machine,
        nvml_session(),
        subprocess.Popen(["/bin/sleep", "60"], user=_USER) as theirs,
        subprocess.Popen(["/bin/sleep", "60"]) as roots,
    ):
        assert computing(_uuid()) == set()
        for process in (theirs, roots):
            kernel = KernelConstants(fixed_s=1e-3)
            machine.gpus[0].join(Neighbour(pid=process.pid, kernel=kernel, share=0.2))
        assert computing(_uuid()) == {_USER, 0}
        owners = Owners(LeaseRules(), uid=_SERVES)
        assert owners.check(_uuid(), _USER)
        with pytest.raises(NotPermittedError, match="processes of user 65534 compute there"):
            owners.check(_uuid(), _OTHER)
        for process in (theirs, roots):
            process.kill()
            process.wait()
        assert computing(_uuid()) == {UNSEEN}
    with simulated_driver("a40"), nvml_session():
        assert computing(_uuid()) == set()
