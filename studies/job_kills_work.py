"""What `underclock run` starts in a study of kills: a launcher of ranks, and ranks without PyTorch.

A rank writes the marks that its run asks for, at the times of the plan; the launcher ends all of
them some time after one has ended, as torchrun does.
"""

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from underclock.hw.base import SystemClock
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page, word_of

CLOCK = SystemClock()
PIDS = "UNDERCLOCK_STUDY_PIDS"
NOTICES_S = 1.0  # a launcher looks for ranks that ended as often
_RANK = "import job_kills_work; job_kills_work.rank()"


def launch() -> None:
    """Start the ranks, say their numbers, and end all where one has ended, or who started us."""
    parent = os.getppid()
    ranks = [
        subprocess.Popen([sys.executable, "-P", "-c", _RANK, str(at), str(os.getpid())])
        for at in range(int(sys.argv[1]))
    ]
    told = Path(os.environ[PIDS])
    told.with_suffix(".part").write_text(json.dumps([os.getpid(), *(r.pid for r in ranks)]))
    told.with_suffix(".part").rename(told)
    while all(each.poll() is None for each in ranks) and os.getppid() == parent:
        CLOCK.sleep_s(0.05)
    CLOCK.sleep_s(NOTICES_S)
    for each in ranks:
        each.kill()
        each.wait()
    sys.exit(1)


def rank() -> None:
    """Mark iterations until the launcher is gone."""
    at, parent = int(sys.argv[1]), int(sys.argv[2])  # which may have ended before we looked
    run = Path(os.environ["UNDERCLOCK_RUN"])
    described = json.loads(run.read_text())
    gpu, parts = described["gpus"][at], json.loads((run.parent / "parts.json").read_text())
    launch_s = parts[described.get("first", 0) + at]["schedules"][0]["launch_s"]
    marks = [*gpu["marks"], len(launch_s)]
    lasts_s = [sum(launch_s[a:b]) for a, b in pairwise(marks)]
    page = Page.open(gpu["page"])
    page.claim()
    page.tell(pages.MARKING)
    due_s, steps = CLOCK.now_s(), 0
    while os.getppid() == parent:
        steps += 1
        page.enqueued = steps
        for mark, each_s in enumerate(lasts_s, start=1):
            page.write(word_of(mark, steps))
            due_s += each_s
            CLOCK.sleep_s(max(0.0, due_s - CLOCK.now_s()))
    os.kill(os.getpid(), signal.SIGKILL)
