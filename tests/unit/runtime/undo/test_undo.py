"""Setting a GPU so that it can be undone: the journal, the undo, other programs that set it."""

import functools
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pynvml
import pytest

from underclock.errors import (
    DataError,
    DeviceError,
    NotPermittedError,
    NotSupportedError,
    UnderclockError,
    UsageError,
)
from underclock.hw.nvml_calls import Lock, Value, enforced_profiles, nvml_session
from underclock.hw.simulated.driver import simulated_rig
from underclock.runtime.undo.guarded_gpu import (
    GuardedGpu,
    Undone,
    boot_id,
    foreign_control_notes,
    left_behind,
    refuse_foreign_control,
    restore,
)
from underclock.runtime.undo.ownership import OwnedError, Ownership
from underclock.units import Domain
from users import NOBODY, as_root


class Gpu(Protocol):
    values: dict[Domain, Value]
    refused: dict[Domain, UnderclockError]
    written: list[tuple[Domain, Value]]
    uuid: str

    def read(self, setting: Domain) -> Lock: ...

    def write(self, setting: Domain, value: Value) -> None: ...


def armed(gpu: Gpu, folder: Path) -> GuardedGpu:
    return GuardedGpu(gpu, folder, share_lock=lambda _: None)


def test_every_change_is_on_disk_before_it_is_set(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)
    seen: list[list[str]] = []

    def write(setting: Domain, value: Value) -> None:
        seen.append(json.loads((folder / "GPU-0.journal").read_text())["changed"])
        gpu.values[setting] = value

    gpu.write = write  # type: ignore[method-assign]
    one.set(Domain.CORE, 1200)
    one.set(Domain.MEMORY, 5001)

    assert seen == [["core"], ["core", "memory"]]


def test_the_journal_is_not_written_again_for_another_lock(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)
    one.set(Domain.CORE, 1200)
    before = (folder / "GPU-0.journal").stat().st_ino

    one.set(Domain.CORE, 1500)
    one.set(Domain.CORE, None)

    assert (folder / "GPU-0.journal").stat().st_ino == before
    assert gpu.written == [(Domain.CORE, 1200), (Domain.CORE, 1500), (Domain.CORE, None)]


def test_only_what_was_changed_is_put_back(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)
    one.set(Domain.MEMORY, 5001)
    gpu.written.clear()

    undone = one.end()

    assert gpu.written == [(Domain.MEMORY, None)]
    assert undone.done == ("memory given back to the driver",)
    assert left_behind(folder) == ()


def test_auto_that_was_never_left_is_not_set(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)

    one.set(Domain.CORE, None)

    assert gpu.written == []
    assert left_behind(folder) == ()


def test_a_lock_that_was_found_is_locked_again(gpu: Gpu, folder: Path) -> None:
    found = gpu.read
    gpu.read = lambda setting: (  # type: ignore[method-assign]
        (900, 1100) if setting is Domain.CORE else found(setting)
    )
    one = armed(gpu, folder)
    one.set(Domain.CORE, 1200)

    assert one.end().done == ("core locked at 900 to 1100 MHz again",)
    assert gpu.values[Domain.CORE] == (900, 1100)


def test_an_undo_that_is_refused_keeps_the_journal_and_tries_the_rest(
    gpu: Gpu, folder: Path
) -> None:
    one = armed(gpu, folder)
    one.set(Domain.CORE, 1200)
    one.set(Domain.MEMORY, 5001)
    gpu.refused[Domain.CORE] = NotPermittedError("no permission")

    undone = one.end()

    assert undone.done == ("memory given back to the driver",)
    assert undone.failed == ("the core STAYS set: no permission",)
    assert left_behind(folder) == ("GPU-0",)
    del gpu.refused[Domain.CORE]
    (mended,) = restore(folder, left_behind(folder), lambda _: gpu)
    assert mended.done == (
        "core given back to the driver",
        "memory given back to the driver",
    )
    assert left_behind(folder) == ()


@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (NotSupportedError("no memory locks"), ()),
        (NotPermittedError("no permission"), ()),
        (DeviceError("unknown error"), ("GPU-0",)),  # a failure is no answer
    ],
)
def test_where_the_driver_took_nothing_there_is_nothing_to_undo(
    error: UnderclockError, stays: tuple[str, ...], gpu: Gpu, folder: Path
) -> None:
    gpu.refused[Domain.MEMORY] = error
    one = armed(gpu, folder)

    with pytest.raises(type(error)):
        one.set(Domain.MEMORY, 5001)

    assert left_behind(folder) == stays
    assert stays or one.end() == Undone("GPU-0")


def test_a_refusal_after_something_was_taken_keeps_the_journal(gpu: Gpu, folder: Path) -> None:
    gpu.refused[Domain.MEMORY] = UsageError("not in its range")
    one = armed(gpu, folder)
    one.set(Domain.CORE, 1200)

    with pytest.raises(UsageError):
        one.set(Domain.MEMORY, 9000)

    assert left_behind(folder) == ("GPU-0",)


def test_a_full_disk_sets_nothing(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # Python ignores its signal
    try:
        with pytest.raises(DataError, match="so nothing is set: File too large"):
            one.set(Domain.CORE, 1200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert gpu.written == []
    assert left_behind(folder) == ()


def test_a_folder_that_is_gone_sets_nothing(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)
    folder.rename(folder.with_name("elsewhere"))

    with pytest.raises(DataError, match="cannot bring the journal"):
        one.set(Domain.CORE, 1200)

    assert gpu.written == []


def test_the_next_start_first_mends_what_was_left(gpu: Gpu, folder: Path) -> None:
    locks: dict[Domain, Lock] = {Domain.CORE: (900, 1100), Domain.MEMORY: None}

    def write(setting: Domain, value: Value) -> None:
        locks[setting] = (int(value), int(value)) if isinstance(value, int | float) else value

    gpu.read = lambda setting: locks[setting]  # type: ignore[method-assign]
    gpu.write = write  # type: ignore[method-assign]
    first = armed(gpu, folder)
    first.set(Domain.CORE, 1200)
    first.lock.release()  # as when its processes were killed

    second = armed(gpu, folder)

    assert second.recovered.done == ("core locked at 900 to 1100 MHz again",)
    assert left_behind(folder) == ()
    second.set(Domain.CORE, 1500)
    second.end()
    assert locks[Domain.CORE] == (900, 1100)  # and not what the first had set


def test_nothing_is_set_on_top_of_what_cannot_be_mended(gpu: Gpu, folder: Path) -> None:
    first = armed(gpu, folder)
    first.set(Domain.CORE, 1200)
    first.lock.release()
    gpu.refused[Domain.CORE] = DeviceError("it is lost")

    with pytest.raises(UsageError, match="still has what an earlier run set"):
        armed(gpu, folder)

    assert left_behind(folder) == ("GPU-0",)
    Ownership.take(folder, "GPU-0", wait_s=0).release()  # the lock was given back


def test_a_second_owner_is_refused_by_name(gpu: Gpu, folder: Path) -> None:
    first = armed(gpu, folder)

    with pytest.raises(OwnedError, match=f"another Underclock: process {os.getpid()}, for "):
        armed(gpu, folder)

    first.end()
    armed(gpu, folder).end()


def test_restore_beside_an_owner_leaves_it_alone(gpu: Gpu, folder: Path) -> None:
    first = armed(gpu, folder)
    first.set(Domain.CORE, 1200)

    (kept,) = restore(folder, left_behind(folder), lambda _: gpu)

    assert "is set by another Underclock" in kept.kept
    assert not kept.failed
    assert gpu.values[Domain.CORE] == 1200


GOOD: dict[str, Any] = {
    "kind": "underclock journal",
    "version": 3,
    "uuid": "GPU-0",
    "pid": 1,
    "boot": boot_id(),
    "found": {"core": None, "memory": [5001, 7251]},
    "changed": ["core", "memory"],
}


def _but(**changed: Any) -> str:
    return json.dumps(GOOD | changed)


def _found(lock: object) -> str:
    return _but(found=GOOD["found"] | {"core": lock})


DAMAGED = {
    "empty": "",
    "cut": _but()[:-9],
    "a list": "[]",
    "a number": "7",
    "text": '"GPU-0"',
    "no text": "\xff\xfe\x00",
    "another kind": _but(kind="underclock plan"),
    "an earlier version": _but(version=2),
    "nothing but its kind": '{"kind": "underclock journal", "version": 3}',
    "another GPU": _but(uuid="GPU-1"),
    "a GPU that cannot be printed": _but(uuid="\ud800"),
    "no process": _but(pid="1"),
    "no boot": _but(boot=None),
    "a setting there is not": _but(changed=["fan"]),
    "changed but not found": _but(found={"core": None}),
    "found is a list": _but(found=[1, 2]),
    "changed is nothing": _but(changed=None),
    "a value that is text": _found(["1200", "1200"]),
    "a value that is a record": _found({}),
    "a value that is true": _found([900, True]),
    "one value of a lock": _found(900),
    "three values of a lock": _found([1, 2, 3]),
    "infinite": _found([900, float("inf")]),
    "not a number": _found([float("nan"), 900]),
    "too large for a float": _found([900, 10**400]),
    "too large for a number": _but().replace("5001", "9" * 5000),
    "no clock of any GPU": _found([900, 10**9]),
    "negative": _found([-1, 900]),
    "deep": "[" * 60_000,
    "deep records": '{"found":' * 7_000,
    "long": "[" * 100_000,
}


def _holds(path: Path, text: str) -> None:
    path.write_bytes(text.encode("latin-1"))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(64 << 30)


def _twice(path: Path) -> None:
    path.write_text(_but())
    path.with_suffix(".other").hardlink_to(path)


def _open_to_all(path: Path) -> None:
    path.write_text(_but())
    path.chmod(0o666)


UNREADABLE: dict[str, Callable[[Path], object]] = {
    **{name: functools.partial(_holds, text=text) for name, text in DAMAGED.items()},
    "a FIFO": os.mkfifo,
    "a folder": lambda path: (path / "within").mkdir(parents=True),
    "a link": lambda path: path.symlink_to("/etc/passwd"),
    "a link to nowhere": lambda path: path.symlink_to("nowhere"),
    "64 GB": _sparse,
    "of two names": _twice,
    "of another's making": _open_to_all,
}


@pytest.mark.parametrize("how", UNREADABLE)
def test_a_journal_that_cannot_be_read_gives_clocks_back_and_is_set_aside(
    how: str, gpu: Gpu, folder: Path
) -> None:
    UNREADABLE[how](folder / "GPU-0.journal")

    (undone,) = restore(folder, left_behind(folder), lambda _: gpu)

    assert gpu.written == [(Domain.CORE, None), (Domain.MEMORY, None)]
    assert undone.unreadable
    assert not undone.failed
    assert "is not a journal of Underclock" in undone.done[-1]
    assert "nvidia-smi" in undone.done[-1]
    assert left_behind(folder) == ()
    assert len(list(folder.glob("GPU-0.journal.*.unreadable"))) == 1


def test_a_run_goes_on_over_a_journal_that_cannot_be_read(gpu: Gpu, folder: Path) -> None:
    (folder / "GPU-0.journal").mkdir()

    one = armed(gpu, folder)
    one.set(Domain.CORE, 1200)

    assert one.recovered.unreadable
    assert one.end() == Undone("GPU-0", ("core given back to the driver",))
    assert left_behind(folder) == ()


def test_a_journal_that_cannot_be_read_stays_until_clocks_are_given_back(
    gpu: Gpu, folder: Path
) -> None:
    (folder / "GPU-0.journal").write_text("")
    gpu.refused[Domain.CORE] = DeviceError("it is lost")

    (undone,) = restore(folder, left_behind(folder), lambda _: gpu)

    assert "the core STAYS set" in undone.failed[0]
    assert left_behind(folder) == ("GPU-0",)


def test_a_journal_of_an_earlier_boot_is_never_applied(gpu: Gpu, folder: Path) -> None:
    (folder / "GPU-0.journal").write_text(_but(boot="2020"))

    (undone,) = restore(folder, left_behind(folder), lambda _: gpu)

    assert gpu.written == []
    assert "of an earlier boot" in undone.done[0]
    assert not undone.failed
    assert not undone.unreadable
    assert left_behind(folder) == ()
    (folder / "GPU-0.journal").write_text(_but())  # of this boot it is
    restore(folder, left_behind(folder), lambda _: gpu)
    assert gpu.written == [(Domain.CORE, None), (Domain.MEMORY, (5001, 7251))]


@as_root
def test_a_journal_that_another_user_wrote_is_none(gpu: Gpu, folder: Path) -> None:
    (folder / "GPU-0.journal").write_text(_but())
    os.chown(folder / "GPU-0.journal", NOBODY, NOBODY)

    (undone,) = restore(folder, left_behind(folder), lambda _: gpu)

    assert undone.unreadable
    assert (Domain.MEMORY, (5001, 7251)) not in gpu.written


@pytest.mark.parametrize("trouble", ["its journal cannot be removed", "its driver fails"])
def test_what_fails_on_one_gpu_is_told_and_the_others_are_undone(
    trouble: str, gpu: Gpu, folder: Path
) -> None:
    bad = type(gpu)()
    bad.uuid = "GPU-bad"
    runs = [armed(one, folder) for one in (bad, gpu)]
    for run in runs:
        run.set(Domain.CORE, 1200)

    def write(setting: Domain, value: Value) -> None:
        if trouble == "its driver fails":
            raise OSError("the driver's socket broke")
        (folder / "GPU-bad.journal").unlink()
        (folder / "GPU-bad.journal" / "within").mkdir(parents=True)
        bad.values[setting] = value

    bad.write = write  # type: ignore[method-assign]
    undone = [run.end() for run in runs]

    words = "cannot remove the journal" if trouble.startswith("its journal") else "socket broke"
    assert words in undone[0].failed[0]
    assert undone[1].done == ("core given back to the driver",)
    assert left_behind(folder) == ("GPU-bad",)
    for uuid in ("GPU-bad", "GPU-0"):
        Ownership.take(folder, uuid, wait_s=0).release()  # both locks were given back


def test_names_that_are_no_gpus_are_no_journals(folder: Path) -> None:
    for name in ("GPU 0.journal", "\udc80.journal", ".journal", "GPU-0.journal.1f.unreadable"):
        (folder / name).touch()

    assert left_behind(folder) == ()


def test_a_gpu_that_is_gone_does_not_keep_others_from_being_restored(
    gpu: Gpu, folder: Path
) -> None:
    one = armed(gpu, folder)
    one.set(Domain.CORE, 1200)
    one.lock.release()
    (folder / "GPU-.journal").write_text("{}")

    def opened(uuid: str) -> Gpu:
        if uuid != gpu.uuid:
            raise DeviceError("it fell off the bus", hint="reboot")
        return gpu

    lost, mended = restore(folder, left_behind(folder), opened)

    assert lost.failed == ("it fell off the bus; reboot",)
    assert mended.done == ("core given back to the driver",)


def test_a_gpu_with_a_power_profile_in_force_is_refused_by_its_number(tmp_path: Path) -> None:
    with pytest.raises(OwnedError, match="GPU-1 has workload power profile 3, 40 in force"):
        refuse_foreign_control(
            ["GPU-0", "GPU-1"], profiles=lambda of: (3, 40) * (of == "GPU-1"), run=tmp_path
        )


@pytest.mark.parametrize("folder", ["geopm", "geopm-service"])
def test_a_geopm_session_that_may_write_is_named(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "CONTROL_LOCK").write_text("")
    refuse_foreign_control(["GPU-0"], profiles=lambda _: (), run=tmp_path)  # no session writes
    (tmp_path / folder / "CONTROL_LOCK").write_text("4711")

    with pytest.raises(OwnedError, match="process 4711 has a GEOPM session"):
        refuse_foreign_control(["GPU-0"], profiles=lambda _: (), run=tmp_path)


def test_dcgms_host_engine_is_noted_and_not_refused(tmp_path: Path) -> None:
    for pid, name in ((1, "systemd"), (77, "nv-hostengine")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
    (tmp_path / "78").mkdir()
    (tmp_path / "78" / "comm").mkdir()  # unreadable, as of one that has just ended

    (note,) = foreign_control_notes(tmp_path)

    assert "process 77" in note


def test_a_driver_without_power_profiles_has_none_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_rig("rtx3080ti") as rig, nvml_session():
        assert enforced_profiles(rig.gpu.uuid()) == ()
        assert enforced_profiles("GPU-unknown") == ()
        for name in [name for name in vars(pynvml) if "WorkloadPowerProfile" in name]:
            monkeypatch.delattr(pynvml, name)  # as in nvidia-ml-py 12.560
        assert enforced_profiles(rig.gpu.uuid()) == ()
