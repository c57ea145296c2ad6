"""The conductor while its watcher starts."""

from pathlib import Path

from underclock.runtime.undo.watching import Watching


def test_a_watcher_that_starts_is_waited_for_in_peace(tmp_path: Path) -> None:
    watching = Watching(tmp_path)
    try:
        now_s = watching.next_s + 0.01
        watching.tend(now_s)

        assert watching.next_s > now_s
    finally:
        watching.close()
