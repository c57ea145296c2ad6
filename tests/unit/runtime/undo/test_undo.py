import json
import os
from pathlib import Path
from typing import Protocol

import pytest

from underclock.errors import (
    DataError,
    DeviceError,
    NotPermittedError,
    NotSupportedError,
    UnderclockError,
    UsageError,
)
from underclock.hw.settable import Setting, Value
from underclock.records.latencies import Domain
from underclock.runtime.undo.armed import Armed, arm
from underclock.runtime.undo.journal import JournalFile
from underclock.runtime.undo.ownership import OwnedError, Ownership
from underclock.runtime.undo.restore import left_behind, restore


class Gpu(Protocol):
    values: dict[Setting, Value]
    refused: dict[Setting, UnderclockError]
    unreadable: set[Setting]
    written: list[tuple[Setting, Value]]
    uuid: str

    def read(self, setting: Setting) -> Value: ...

    def write(self, setting: Setting, value: Value) -> None: ...


def armed(gpu: Gpu, folder: Path) -> Armed:
    return arm(gpu, folder, share_lock=lambda _: None)


def test_every_change_is_on_disk_before_it_is_set(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)
    seen: list[dict[str, list[Value]]] = []

    def write(setting: Setting, value: Value) -> None:
        seen.append(json.loads((folder / "GPU-0.journal").read_text())["asked"])
        gpu.values[setting] = value

    gpu.write = write  # type: ignore[method-assign]
    one.set(Setting.CORE, 1200)
    one.set(Setting.LIMIT, 300.0)
    one.set(Setting.LIMIT, 280.0)

    assert seen == [
        {"core": [1200]},
        {"core": [1200], "limit": [300.0]},
        {"core": [1200], "limit": [300.0, 280.0]},
    ]


def test_the_journal_is_not_written_again_for_another_lock(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)
    one.set(Setting.CORE, 1200)
    before = (folder / "GPU-0.journal").stat().st_ino

    one.set(Setting.CORE, 1500)
    one.set(Setting.CORE, None)

    assert (folder / "GPU-0.journal").stat().st_ino == before
    assert gpu.written == [(Setting.CORE, 1200), (Setting.CORE, 1500), (Setting.CORE, None)]


def test_a_domain_of_a_schedule_names_what_is_set(gpu: Gpu, folder: Path) -> None:
    armed(gpu, folder).set(Domain.MEMORY, 5001)  # type: ignore[arg-type]

    assert gpu.written == [(Setting.MEMORY, 5001)]


def test_only_what_was_changed_is_put_back(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)
    one.set(Setting.LIMIT, 300.0)
    gpu.written.clear()

    undone = one.end()

    assert gpu.written == [(Setting.LIMIT, 350.0)]
    assert undone.done == ("limit put back to 350 W",)
    assert left_behind(folder) == ()


def test_auto_that_was_never_left_is_not_set(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)

    one.set(Setting.CORE, None)

    assert gpu.written == []
    assert left_behind(folder) == ()


def test_a_limit_that_somebody_else_set_meanwhile_stays_theirs(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)
    one.set(Setting.LIMIT, 300.0)
    gpu.values[Setting.LIMIT] = 320.0

    assert one.end().done == ()
    assert gpu.values[Setting.LIMIT] == 320.0


def test_a_limit_that_seems_as_found_is_written_again(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)
    one.set(Setting.LIMIT, 300.0)
    gpu.values[Setting.LIMIT] = 350.0  # as where a daemon has not come to our change yet

    one.end()

    assert gpu.written[-1] == (Setting.LIMIT, 350.0)


def test_a_limit_that_can_no_longer_be_read_is_put_back(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)
    one.set(Setting.LIMIT, 300.0)
    gpu.unreadable.add(Setting.LIMIT)

    assert one.end().done == ("limit put back to 350 W",)


def test_what_could_not_be_put_back_is_not_set(gpu: Gpu, folder: Path) -> None:
    gpu.values[Setting.LIMIT] = None

    with pytest.raises(UsageError, match="what it is now cannot be read"):
        armed(gpu, folder).set(Setting.LIMIT, 300.0)


def test_a_lock_that_was_found_is_locked_again(gpu: Gpu, folder: Path) -> None:
    found = gpu.read
    gpu.read = lambda setting: (  # type: ignore[method-assign]
        (900, 1100) if setting is Setting.CORE else found(setting)
    )
    one = armed(gpu, folder)
    one.set(Setting.CORE, 1200)

    assert one.end().done == ("core locked at 900 to 1100 MHz again",)
    assert gpu.values[Setting.CORE] == (900, 1100)


def test_an_undo_that_is_refused_keeps_the_journal_and_tries_the_rest(
    gpu: Gpu, folder: Path
) -> None:
    one = armed(gpu, folder)
    one.set(Setting.CORE, 1200)
    one.set(Setting.LIMIT, 300.0)
    gpu.refused[Setting.CORE] = NotPermittedError("no permission")

    undone = one.end()

    assert undone.done == ("limit put back to 350 W",)
    assert undone.failed == ("the core STAYS set: no permission",)
    assert left_behind(folder) == ("GPU-0",)
    del gpu.refused[Setting.CORE]
    (mended,) = restore(folder, left_behind(folder), lambda _: gpu)
    assert mended.done == ("core given back to the driver", "limit put back to 350 W")
    assert left_behind(folder) == ()


def test_a_domain_that_this_gpu_does_not_have_is_nothing_to_undo(gpu: Gpu, folder: Path) -> None:
    gpu.refused[Setting.MEMORY] = NotSupportedError("no memory locks")
    one = armed(gpu, folder)
    with pytest.raises(NotSupportedError):
        one.set(Setting.MEMORY, 5001)

    assert one.end() == ("GPU-0", (), (), "")
    assert left_behind(folder) == ()


def test_where_the_driver_took_nothing_there_is_nothing_to_undo(gpu: Gpu, folder: Path) -> None:
    gpu.refused[Setting.CORE] = NotPermittedError("no permission")
    one = armed(gpu, folder)

    with pytest.raises(NotPermittedError):
        one.set(Setting.CORE, 1200)

    assert left_behind(folder) == ()
    assert one.changed == frozenset()
    assert one.end().failed == ()


def test_a_refusal_after_something_was_taken_keeps_the_journal(gpu: Gpu, folder: Path) -> None:
    gpu.refused[Setting.LIMIT] = UsageError("not in its range")
    one = armed(gpu, folder)
    one.set(Setting.CORE, 1200)

    with pytest.raises(UsageError):
        one.set(Setting.LIMIT, 9000.0)

    assert left_behind(folder) == ("GPU-0",)


def test_a_failure_is_no_answer_so_the_journal_stays(gpu: Gpu, folder: Path) -> None:
    gpu.refused[Setting.CORE] = DeviceError("unknown error")
    one = armed(gpu, folder)

    with pytest.raises(DeviceError):
        one.set(Setting.CORE, 1200)

    assert left_behind(folder) == ("GPU-0",)


def test_a_full_disk_sets_nothing(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)
    (folder / ".GPU-0.journal.new").symlink_to("/dev/full")

    with pytest.raises(DataError, match="so nothing is set: No space left on device"):
        one.set(Setting.CORE, 1200)

    assert gpu.written == []


def test_a_folder_that_is_gone_sets_nothing(gpu: Gpu, folder: Path) -> None:
    one = armed(gpu, folder)
    folder.rename(folder.with_name("elsewhere"))

    with pytest.raises(DataError, match="cannot bring the journal"):
        one.set(Setting.CORE, 1200)

    assert gpu.written == []


def test_the_next_start_first_mends_what_was_left(gpu: Gpu, folder: Path) -> None:
    first = armed(gpu, folder)
    first.set(Setting.LIMIT, 300.0)
    first.lock.release()  # as when its processes were killed

    second = armed(gpu, folder)

    assert second.mended.done == ("limit put back to 350 W",)
    assert second.found[Setting.LIMIT] == 350.0
    assert second.changed == frozenset()


def test_nothing_is_set_on_top_of_what_cannot_be_mended(gpu: Gpu, folder: Path) -> None:
    first = armed(gpu, folder)
    first.set(Setting.CORE, 1200)
    first.lock.release()
    gpu.refused[Setting.CORE] = DeviceError("it is lost")

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
    first.set(Setting.CORE, 1200)

    (kept,) = restore(folder, left_behind(folder), lambda _: gpu)

    assert "is set by another Underclock" in kept.kept
    assert not kept.failed
    assert gpu.values[Setting.CORE] == 1200


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"kind": "underclock plan", "version": 1}',
        '{"kind": "underclock journal", "version": 9, "uuid": "GPU-0"}',
        '{"kind": "underclock journal", "version": 1, "uuid": "GPU-1", "pid": 1}',
        '{"kind": "underclock journal", "version": 1, "uuid": "GPU-0", "pid": 1, "found": {"x":1}}',
    ],
)
def test_a_damaged_journal_gives_clocks_back_and_says_so(text: str, gpu: Gpu, folder: Path) -> None:
    (folder / "GPU-0.journal").write_text(text)

    (undone,) = restore(folder, left_behind(folder), lambda _: gpu)

    assert gpu.written == [(Setting.CORE, None), (Setting.MEMORY, None)]
    assert "is not a journal of Underclock" in undone.failed[0]
    assert left_behind(folder) == ("GPU-0",)


def test_a_journal_that_is_a_link_is_not_followed(gpu: Gpu, folder: Path) -> None:
    (folder / "GPU-0.journal").symlink_to("/etc/passwd")

    with pytest.raises(DataError, match="cannot read the journal"):
        JournalFile(folder, gpu.uuid).read()


def test_a_gpu_that_is_gone_does_not_keep_others_from_being_restored(
    gpu: Gpu, folder: Path
) -> None:
    one = armed(gpu, folder)
    one.set(Setting.CORE, 1200)
    one.lock.release()
    (folder / "GPU-.journal").write_text("{}")

    def opened(uuid: str) -> Gpu:
        if uuid != gpu.uuid:
            raise DeviceError("it fell off the bus", hint="reboot")
        return gpu

    lost, mended = restore(folder, left_behind(folder), opened)

    assert lost.failed == ("it fell off the bus; reboot",)
    assert mended.done == ("core given back to the driver",)
