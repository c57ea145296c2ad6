"""serve: leases of this machine's GPUs for users who may not set them."""

import grp
import os
from collections.abc import Callable
from pathlib import Path

from underclock.errors import NotPermittedError, UsageError
from underclock.hw import nvml_calls as nvml
from underclock.hw.clock import SystemClock
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import may_set
from underclock.hw.settable import SettableNvmlGpu
from underclock.hw.wire import listening
from underclock.runtime.conductor.leases import LIMIT_S, Owners, Terms, rules_in
from underclock.runtime.conductor.process import asked_to_end
from underclock.runtime.conductor.serving import Service
from underclock.runtime.undo.armed import left_behind, restore
from underclock.runtime.undo.ownership import runtime_folder

_OWNER, _GROUP = 0o600, 0o660


def serve(
    path: Path,
    *,
    group: str | None = None,
    rules: Path | None = None,
    limit_s: float = LIMIT_S,
    tell: Callable[[str], None],
) -> None:
    """Serve leases until a signal asks to end; then undo what is set under them.

    Args:
        path: Of the socket.
        group: Who may use it; by default the user who serves, and root.
        rules: File that says who may lease which GPU; by default the usual one, if there is any.
        limit_s: No lease lasts longer.
        tell: Hears what happens.

    Raises:
        UsageError: No such group or limit, rules that cannot be read, or a socket that cannot be.
        NotPermittedError: This process may not set GPUs itself.
        DeviceError: There is no driver.
    """
    gid, owners = _gid(group), Owners(rules_in(rules), uid=os.geteuid())
    with nvml.nvml_session(), asked_to_end() as asked:
        nvml.check_writable("set clocks for others")
        if not may_set():
            raise NotPermittedError(
                "this process may not set clocks itself, so it cannot for others",
                hint="run it as root, outside a container or with CAP_SYS_ADMIN",
            )
        folder = runtime_folder()
        uuids = [NvmlGpu(index).uuid() for index in range(nvml.gpu_count())]
        left = [uuid for uuid in left_behind(folder) if uuid in uuids]
        for undone in restore(folder, left, SettableNvmlGpu):
            for line in (*undone.done, *undone.failed):
                tell(f"left by an earlier run on GPU {undone.uuid}: {line}")
        terms = Terms(folder=folder, clock=SystemClock(), tell=tell, owners=owners, limit_s=limit_s)
        gpus = {uuid: SettableNvmlGpu(uuid) for uuid in uuids}
        service = Service(gpus, terms, pid=os.getpid(), uid=os.getuid())
        mode = _OWNER if gid is None else _GROUP
        with listening(path, mode=mode, gid=gid) as server:
            whom = f"{group or 'this user alone'}, by policy {owners.rules.policy!s}"
            tell(f"serving {len(uuids)} GPUs at {path} to {whom}")
            service.run(server, asked.fileno())


def _gid(group: str | None) -> int | None:
    if group is None:
        return None
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError as exc:
        raise UsageError(f"there is no group {group!r}", hint="see `getent group`") from exc
