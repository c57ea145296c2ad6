"""The conductor while its watcher starts."""

import os
import signal
import subprocess
from pathlib import Path

from underclock.runtime.undo.processes import StoppedPoll
from underclock.runtime.undo.watching import Watching


def test_a_watcher_that_starts_is_waited_for_in_peace(tmp_path: Path) -> None:
    watching = Watching(tmp_path)
    try:
        now_s = watching.next_s + 0.01
        watching.tend(now_s)

        assert watching.next_s > now_s
    finally:
        watching.close()


def test_a_process_that_is_stopped_is_seen_to_be_again_and_again() -> None:
    with subprocess.Popen(["/bin/sleep", "100"]) as process:
        look = StoppedPoll(process.pid)
        assert not look()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert look()
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        assert not look()
        assert not StoppedPoll(process.pid)()
        look.close()
        look.close()
