"""Ranks of a job under one controller, each followed by its own page on the test's own time."""

import functools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from followed import Asked, Given, Virtual
from made_jobs import job, job_plan
from underclock.hw.settable import Setting
from underclock.records.job import Held
from underclock.records.runs import EventLine
from underclock.runtime.controller.follow import Follow, GpuController
from underclock.runtime.controller.log import Log, read_log
from underclock.runtime.controller.process import WorkDone
from underclock.runtime.machine.machine import Machine
from underclock.runtime.policy.job import JobPolicy
from underclock.runtime.policy.parts import parts_of
from underclock.runtime.policy.ranks import JobRanks, RankPolicy
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page, word_of

_JOB = job(transfer_s=(1e-3,))
_SLOW_MHZ, _FAST_MHZ = 1500, 1800


class Ranks:
    """The pages of all ranks, and who follows them."""

    def __init__(self, folder: Path) -> None:
        clocks = tuple(
            tuple(
                None if each.profile is None else Held(row=6 if "forward" in each.profile else 1)
                for each in rank.instructions
            )
            for rank in _JOB.ranks
        )
        plan = job_plan(_JOB, clocks=clocks)
        ranks = self.ranks = JobRanks(JobPolicy(plan, window=0))
        self.policy = ranks.job
        self.clock, self.log, self.steps = Virtual(), folder / "log.jsonl", 0
        self.parts = parts_of(plan)
        self.setters = [Asked() for _ in self.parts]
        self.pages: list[Page] = []
        self.shown: list[Given] = []
        followers = []
        for rank, part in enumerate(self.parts):
            page = Page.create(folder / f"{rank}.page", digest=bytes(32), marks=part.marks)
            page.tell(pages.MARKING)
            self.pages.append(page)
            self.shown.append(Given())
            machine = Machine(part.timetable(self.policy.chosen))
            policy = RankPolicy(machine, part, rank, ranks)
            followers.append(
                GpuController(
                    rank,
                    page,
                    machine,
                    policy,
                    setter=self.setters[rank],
                    gauges=self.shown[rank],
                    clock=self.clock,
                )
            )
        self.follow = Follow(tuple(followers), Log(self.log), self.clock, ranks)

    def iterate(self, count: int) -> None:
        """Let every rank reach all marks of some iterations, at the times planned."""
        for _ in range(count):
            self.steps += 1
            began_s = self.clock.now_s()
            for part, page in zip(self.parts, self.pages, strict=True):
                upto_s = part.timetable(self.policy.chosen).upto_s
                for mark, launch in enumerate(part.marks, start=1):
                    word = word_of(mark, self.steps)
                    self.clock.at(began_s + upto_s[launch], functools.partial(page.write, word))
            self.wait(upto_s[-1])

    def wait(self, for_s: float) -> None:
        until_s = self.clock.now_s() + for_s
        while (now_s := self.clock.now_s()) < until_s:
            next_s = min(self.follow.next_s(), until_s)
            self.clock.sleep_s(max(0.0, next_s - now_s) + 1e-6)
            self.follow.wake(self.clock.now_s())

    def core_mhz(self) -> list[Any]:
        """Return what each rank's core was asked for last."""
        return [
            [value for setting, value in asked.values if setting is Setting.CORE][-1]
            for asked in self.setters
        ]

    def events(self) -> list[str]:
        return [line.text for line in read_log(self.log) if isinstance(line, EventLine)]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    made = Ranks(tmp_path)
    yield made
    made.follow.close()
    for page in made.pages:
        page.close()


def test_each_rank_follows_its_part_once_all_have_armed(ranks: Ranks) -> None:
    ranks.iterate(2)
    assert not any(asked.values for asked in ranks.setters)
    ranks.iterate(6)
    ranks.wait(0.2)
    for asked in ranks.setters:
        assert {value for _, value in asked.values} == {_SLOW_MHZ, _FAST_MHZ}
    (told,) = ranks.events()
    assert told == "order 1: every rank has armed; from now on: the plan"


def test_a_trainer_that_ended_takes_all_to_auto_and_the_last_one_ends_the_run(
    ranks: Ranks,
) -> None:
    ranks.iterate(5)
    with subprocess.Popen(["/bin/true"]) as ended:
        pass
    ranks.pages[1]._write(128, ended.pid.to_bytes(4, "little"))  # noqa: SLF001 - as it was claimed
    ranks.wait(0.5)  # the other one waits for it, and marks nothing
    assert ranks.core_mhz() == [None, None]
    assert ranks.pages[0].pid == os.getpid()
    ranks.pages[0]._write(128, ended.pid.to_bytes(4, "little"))  # noqa: SLF001
    with pytest.raises(WorkDone, match="the training process ended"):
        ranks.wait(0.5)
    assert ranks.events()[1:] == [
        "order 2: rank 1: the training process ended; from now on: auto on all ranks"
    ]


def test_ranks_that_never_came_are_said_to_lack_and_not_to_have_no_optimizer(
    ranks: Ranks,
) -> None:
    """As of 2 ranks under a plan of 4: those that came are refused, the others never mark."""
    reason = "this job has a world size of 1, and the plan is for 2 ranks"
    ranks.pages[1].tell(pages.WAITING)
    ranks.pages[0].tell(pages.REFUSED, reason)
    ranks.wait(0.3)
    ranks.follow.close()

    assert ranks.events()[-1] == f"no step was seen: {reason}"
    assert not any("optimiser" in words for words in ranks.events())
