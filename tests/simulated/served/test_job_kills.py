"""A handful of the kills of studies/job_kills.py, so that the suite notices where they fail."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import job_kills
from underclock.hw.nvml_calls import SIMULATOR
from underclock.records.runs import EventLine
from underclock.runtime.controller.log import read_log
from underclock.runtime.undo.ownership import RUNTIME_DIR


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[job_kills.Rig]:
    studies = str(Path(job_kills.__file__).parent)
    paths = [studies, os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    for name in (SIMULATOR, RUNTIME_DIR):  # which the rig sets, and pytest puts back
        monkeypatch.setenv(name, "")
    with job_kills.open_rig(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_whoever_of_a_job_is_killed_every_gpu_is_as_found(rig: job_kills.Rig) -> None:
    draw = random.Random(3)  # noqa: S311 - which kill comes next
    kills = [job_kills.kill_once(rig, draw, (job_kills.R,))]
    orders = [line.text for line in read_log(rig.log) if isinstance(line, EventLine)]
    # Its launcher ends the other ranks only later; clocks do not wait for that.
    (order,) = [words for words in orders if words.startswith("order 2")]
    assert "the training process ended; from now on: auto on all ranks" in order
    kills.append(job_kills.kill_once(rig, draw))
    assert all(kill.good for kill in kills), kills
    assert kills[0].was_set
    said = job_kills.summary(kills)
    assert "Every GPU as found: **2 of 2**" in said
    assert len(job_kills.rows(kills).splitlines()) == 2 + len({kill.who for kill in kills})
