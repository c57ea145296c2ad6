"""Replicas of one stage that train on served GPUs without PyTorch, each a thread: ITERATIONS.

Each waits for what its GPU computes, mark by mark, and for the others at the end of an iteration.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from underclock.hw.nvml_calls import SIMULATOR
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.marking import RUN
from underclock.runtime.trainer.page import Page, word_of
from underclock.runtime.trainer.streams import ServedStream


def main() -> None:
    """Train as many iterations, all replicas together."""
    gpus = json.loads(Path(os.environ[RUN]).read_text())["gpus"]
    met = threading.Barrier(len(gpus))
    threads = [threading.Thread(target=_train, args=(gpu, met), daemon=True) for gpu in gpus]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def _train(gpu: dict[str, Any], met: threading.Barrier) -> None:
    page = Page.open(gpu["page"])
    page.claim()
    stream = ServedStream.connect(
        os.environ[SIMULATOR],
        gpu=gpu["index"],
        step=gpu["step"],
        page=gpu["page"],
        marks=gpu["marks"],
        waits=True,
    )
    page.tell(pages.MARKING)
    for step in range(1, 1 + int(sys.argv[1])):
        page.enqueued = step
        for mark in range(1, 1 + len(gpu["marks"])):
            stream.mark(word_of(mark, step))
        met.wait()


if __name__ == "__main__":
    main()
