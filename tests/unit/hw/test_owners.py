"""Which user may lease a GPU, by the operator's rules, and which files of rules are believed."""

import os
import subprocess
from pathlib import Path

import pytest

from underclock.errors import NotPermittedError, UsageError
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.owners import Owners, Policy, Rules, computing, rules_in
from underclock.hw.simulated.work import Neighbour
from underclock.physics.constants import KernelConstants
from underclock.testing import simulated_driver

_ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can own what others write")
_USER, _OTHER = 65534, 65533


def _uuid() -> str:
    return NvmlGpu().uuid()


def test_by_default_a_gpu_is_whose_processes_compute_on_it(tmp_path: Path) -> None:
    assert Rules().policy is Policy.PROCESS
    with simulated_driver("a40"), nvml_session():
        owners = Owners(Rules())
        with pytest.raises(NotPermittedError, match=f"not known to be user {_USER}'s") as caught:
            owners.check(_uuid(), _USER)
        assert "start the job first" in caught.value.hint
        owners.check(_uuid(), os.geteuid())  # who serves
    assert not list(tmp_path.iterdir())


class _Computing(Owners):
    """Rules by process, on GPUs of which a test says who computes there."""

    def __init__(self, *users: int) -> None:
        super().__init__(Rules(), computing=lambda _uuid: set(users))


def test_a_gpu_that_users_share_is_nobodys() -> None:
    _Computing(_USER).check("GPU-1", _USER)
    with pytest.raises(NotPermittedError, match="none of that user's processes"):
        _Computing(_OTHER).check("GPU-1", _USER)
    with pytest.raises(NotPermittedError, match="clocks are one for all"):
        _Computing(_OTHER, _USER).check("GPU-1", _USER)


def test_a_lease_is_lost_to_the_next_job_and_not_to_a_guest() -> None:
    assert not _Computing(_USER).has_lost("GPU-1", _USER)
    assert not _Computing().has_lost("GPU-1", _USER)  # between two steps of its own
    assert not _Computing(_USER, _OTHER).has_lost("GPU-1", _USER)
    assert _Computing(_OTHER).has_lost("GPU-1", _USER)


def test_the_site_may_name_whose_a_gpu_is(tmp_path: Path) -> None:
    owners = Owners(Rules(policy=Policy.FILE, owners=str(tmp_path)))
    file = tmp_path / "GPU-1"
    with pytest.raises(NotPermittedError, match="no file of the operator's") as caught:
        owners.check("GPU-1", _USER)
    assert str(file) in caught.value.hint
    file.write_text(f"{_USER}\n")
    owners.check("GPU-1", _USER)
    assert not owners.has_lost("GPU-1", _USER)
    with pytest.raises(NotPermittedError):
        owners.check("GPU-1", _OTHER)
    file.write_text("")  # the next prolog is only just writing it
    assert not owners.has_lost("GPU-1", _USER)
    file.write_text(f"{_OTHER}")
    assert owners.has_lost("GPU-1", _USER)
    file.unlink()
    assert owners.has_lost("GPU-1", _USER)


@pytest.mark.parametrize("what", ["written by others", "rubbish", "pipe", "link", "folder"])
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
        case "link":
            file.rename(tmp_path / "elsewhere")
            file.symlink_to(tmp_path / "elsewhere")
        case _:
            tmp_path.chmod(0o777)
    with pytest.raises(NotPermittedError):
        Owners(Rules(policy=Policy.FILE, owners=str(tmp_path))).check("GPU-1", _USER)


@_ROOT_ONLY
def test_a_file_of_another_user_names_nobody(tmp_path: Path) -> None:
    (tmp_path / "GPU-1").write_text(f"{_USER}")
    os.chown(tmp_path / "GPU-1", _USER, -1)
    with pytest.raises(NotPermittedError):
        Owners(Rules(policy=Policy.FILE, owners=str(tmp_path))).check("GPU-1", _USER)


def test_everybody_is_let_in_only_by_name(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('policy = "any"\n')
    Owners(rules_in(file)).check("GPU-1", _USER)
    file.write_text('policy = "file"\nowners = "/run/jobs"\n')
    assert rules_in(file) == Rules(policy=Policy.FILE, owners="/run/jobs")


@pytest.mark.parametrize(
    "text", ['policy = "all"', "policy = ", 'polcy = "any"', "policy = 1", "[" * 9000, "\0"]
)
def test_rules_that_cannot_be_read_start_nothing(text: str, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises((UsageError, NotPermittedError), match=r"serve\.toml"):
        rules_in(file)


def test_rules_that_others_may_write_start_nothing(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    with pytest.raises(UsageError, match="there is no file"):
        rules_in(file)
    file.write_text('policy = "any"')
    file.chmod(0o664)
    with pytest.raises(NotPermittedError, match="is not believed") as caught:
        rules_in(file)
    assert "chmod go-w" in caught.value.hint


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
        assert computing(_uuid()) == {_USER}
        Owners(Rules()).check(_uuid(), _USER)
        with pytest.raises(NotPermittedError, match="none of that user's processes"):
            Owners(Rules()).check(_uuid(), _OTHER)
        for process in (theirs, roots):
            process.kill()
    with simulated_driver("a40"), nvml_session():
        assert computing(_uuid()) == set()
