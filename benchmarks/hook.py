"""What a server's calls to its governor take, with a reader and without.

python benchmarks/hook.py
"""

import os
import select
import statistics
import threading
import time
from functools import partial

from underclock.runtime.trainer.notes import NOTE, Hook, Pace

CALLS, ROUNDS, REQUESTS = 20_000, 9, 128


def main() -> None:
    """Print medians and the most over rounds, in µs a call."""
    reads, writes = os.pipe()
    hook = Hook(writes, reads)
    threading.Thread(target=_read, args=(reads,), daemon=True).start()
    pace = Pace(0.02, 0.5)
    for number in range(REQUESTS):
        pace.began(number, 0.0)
    calls = {
        "begin": partial(hook.begin, "decode", 12, 1400),
        "begin within": partial(hook.begin, "decode", 12, 1400, within_s=0.01),
        "end": partial(hook.end),
        "late": partial(hook.late),
        f"Pace.within_s of {REQUESTS} requests": partial(_look, pace),
    }
    for name, call in calls.items():
        took = []
        for _ in range(ROUNDS):
            began_s = time.perf_counter()
            for _ in range(CALLS):
                call()
            took.append((time.perf_counter() - began_s) / CALLS * 1e6)
        print(f"{name}: {statistics.median(took):.2f} us, most {max(took):.2f}; {hook.lost} lost")


def _look(pace: Pace) -> None:
    pace.within_s(0.1)


def _read(pipe: int) -> None:
    while select.select([pipe], [], []) and os.read(pipe, NOTE.size * 1024):
        pass


if __name__ == "__main__":
    main()
