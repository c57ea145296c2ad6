"""Where the controller's process begins: its watchdog is started before anything heavy is loaded.

So both load at the same time, and a GPU is armed as soon as either could be alone.
"""

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from underclock.errors import DataError, UnderclockError
from underclock.runtime.undo.ownership import RUNTIME_DIR, runtime_folder
from underclock.runtime.undo.watchdog_process import WatchdogProcess


def main() -> None:
    """Carry out the order that is this process's first argument; tell how it goes on stdout."""
    # Who started us may have closed stderr, which the watchdog inherits: nothing that we open is to
    # be taken for it.
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004 - stderr's number
        os.set_inheritable(fd, True)
    os.close(fd)
    try:
        # Where this process ends before it has set anything, the watchdog ends by itself.
        watchdog = WatchdogProcess(runtime_folder())
        from underclock.runtime.controller.process import carry_out  # noqa: PLC0415

        ending = carry_out(json.loads(sys.argv[1]), watchdog, _say)
    except (UnderclockError, OSError) as exc:
        # Of whatever file it is: everything was undone, and why must be known.
        hint = f"see to the folder of runs, or name another with {RUNTIME_DIR}"
        ours = (
            exc
            if isinstance(exc, UnderclockError)
            else DataError(f"cannot go on: {exc}", hint=hint)
        )
        error = "; ".join((str(ours), *getattr(exc, "__notes__", ())))
        _say({"state": "refused", "error": error, "hint": ours.hint, "kind": type(ours).__name__})
        sys.exit(ours.exit_code)
    undone = [one._asdict() for one in ending.undone]
    _say({"state": "ended", "why": ending.why, "undone": undone})


def _say(message: Mapping[str, Any]) -> None:
    """Tell whoever asked, if they still listen."""
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")
