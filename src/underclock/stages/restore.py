"""restore: undo what an Underclock that was killed left set."""

import os
from collections.abc import Iterator
from pathlib import Path

from underclock.errors import NotPermittedError
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.hw.settable import CLOCKS, SettableNvmlGpu, Setting, Value
from underclock.hw.ways_to_set import settable_gpu
from underclock.runtime.undo.armed import Undone
from underclock.runtime.undo.ownership import runtime_folder
from underclock.runtime.undo.restore import left_behind
from underclock.runtime.undo.restore import restore as undo_in
from underclock.stages.gpu_names import parse_gpu


class _ClocksOnly(SettableNvmlGpu):
    """A GPU on which another user's journal may give clocks back, and set nothing."""

    def write(self, setting: Setting, value: Value) -> None:
        """Give a clock back; anything else would be that user's word for it."""
        if setting not in CLOCKS:
            raise NotPermittedError(
                f"will not set the {setting} because another user's journal says so",
                hint="that user's own `underclock restore` does",
            )
        del value
        super().write(setting, None)


def restore(gpu: str | None = None, *, everybody: bool = False) -> tuple[Undone, ...]:
    """Undo by the journals that were left behind.

    Args:
        gpu: Only of this one, such as ``nvml:0``.
        everybody: Whether to look in the folders of all users, as root does after a job. What they
            locked is given back to the driver; a power limit is put back from the own folder only.

    Raises:
        UsageError: No such GPU.
        DeviceError: The driver does not answer.
    """
    own = runtime_folder()
    folders = [own, *(other for other in _others() if everybody and other != own)]
    left = {folder: uuids for folder in folders if (uuids := left_behind(folder))}
    if not left and gpu is None:
        return ()
    with nvml_session():
        only = None if gpu is None else NvmlGpu(parse_gpu(gpu).index).uuid()
        undone: list[Undone] = []
        for folder, uuids in left.items():
            opened = settable_gpu if folder == own else _ClocksOnly
            wanted = [uuid for uuid in uuids if only in {None, uuid}]
            undone.extend(undo_in(folder, wanted, opened))
    return tuple(undone)


def _others() -> Iterator[Path]:
    """Yield the folders where other users' runs keep their files by default."""
    for parent, pattern in (
        ("/run", "underclock"),
        ("/run/user", "*/underclock"),
        ("/tmp", "underclock-*"),  # noqa: S108 - what is read there is not trusted
    ):
        for folder in Path(parent).glob(pattern):
            if folder.is_dir() and not folder.is_symlink() and os.access(folder, os.W_OK):
                yield folder
