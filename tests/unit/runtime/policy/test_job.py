"""What the ranks of a job do together, and its plan as each rank's controller holds it."""

import math

import msgspec
import numpy as np
import pytest

from made_jobs import CLOCKS_MHZ, all_at, cost, iteration_s, job, job_plan
from underclock.errors import UsageError
from underclock.records import Clocks, Segment
from underclock.records.job import Held, Job, JobPlan
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.timetable import PassedStep, State
from underclock.runtime.policy.guard import Stage
from underclock.runtime.policy.job import JobPolicy, JobRanks, Order, RankPolicy
from underclock.runtime.policy.parts import RankPart, parts_of
from underclock.units import Domain

_REPLICAS = job(data=2, reduce_s=1e-3)
_ALONE = job()


class Trains:
    """Iterations of a job under a policy: ranks take an order up with their next iteration."""

    def __init__(self, plan: JobPlan, *, window: int = 20, noise: float = 1e-4) -> None:
        self.policy = JobPolicy(plan, window=window)
        self.orders: list[tuple[int, Order]] = []  # and how many iterations there were
        self.times_s: list[float] = []
        self.slower = [1.0] * len(plan.job.ranks)
        self.plans_fault = 1.0  # how much slower iterations are while clocks are held
        self._plan, self._noise = plan, noise
        self._random = np.random.default_rng(1)
        for rank in range(len(plan.job.ranks)):
            self.policy.armed(rank)

    def train(self, iterations: int) -> None:
        for _ in range(iterations):
            order, points = self.policy.order, self.policy.points
            rows = [0 if at is None else at + 1 for at in order.points]
            of = self._plan.job
            clocks = tuple(all_at(of, row)[rank] for rank, row in enumerate(rows))
            busy_s = [
                slow * (self.policy.auto if at is None else points[at]).busy_s[rank]
                for rank, (at, slow) in enumerate(zip(order.points, self.slower, strict=True))
            ]
            time_s = iteration_s(of, clocks, tuple(self.slower))
            if any(at is not None for at in order.points):
                time_s *= self.plans_fault
            self.times_s.append(time_s)
            for rank, each_s in enumerate(busy_s):
                noise = 1.0 + self._noise * self._random.standard_normal(2)
                new = self.policy.passed(rank, time_s * noise[0], each_s * noise[1])
                if new is not None:
                    self.orders.append((len(self.times_s), new))


def test_nothing_is_held_before_every_rank_has_armed() -> None:
    policy = JobPolicy(job_plan(_ALONE), window=0)
    policy.armed(0)
    for _ in range(50):
        assert policy.passed(0, 0.1) is None
        assert policy.passed(1, 0.1) is None
    assert policy.order.generation == 0
    policy.armed(1)
    assert policy.passed(0, 0.1) is None
    order = policy.passed(1, 0.1)
    assert order is policy.order
    assert (order.generation, order.points) == (1, (0, 0))


def test_auto_is_learned_first_and_then_the_plan_is_held() -> None:
    job_ = Trains(job_plan(_ALONE, row=2))
    job_.train(100)
    ((at, order),) = job_.orders
    assert 22 <= at <= 30
    assert order.points == (1, 1)
    assert order.words == "steps are as promised; from now on: the plan"


def test_iterations_slower_than_promised_take_all_to_auto_and_then_to_a_faster_plan() -> None:
    job_ = Trains(job_plan(_ALONE, row=2))
    job_.plans_fault = 1.05
    job_.train(200)
    assert [order.points for _, order in job_.orders] == [
        (1, 1), (None, None), (0, 0), (None, None)
    ]  # fmt: skip
    assert [order.generation for _, order in job_.orders] == [1, 2, 3, 4]
    assert "slower than promised: +" in job_.orders[1][1].words
    assert job_.orders[1][1].words.endswith("auto on all ranks, to see whether it is the plan")
    assert job_.policy.stage is Stage.OFF
    before = len(job_.orders)
    job_.train(50)
    assert len(job_.orders) == before


@pytest.mark.parametrize("slower", [1.05, 1.1])
@pytest.mark.parametrize("window", [0, 20])
def test_replicas_take_the_plan_of_a_straggler_within_20_iterations(
    slower: float, window: int
) -> None:
    plan = job_plan(_REPLICAS, row=1)
    job_ = Trains(plan, window=window)
    job_.train(60)
    assert job_.policy.order.points == (0, 0, 0, 0)
    known = len(job_.orders)

    job_.slower = [1.0, 1.0, slower, slower]
    began_s = iteration_s(_REPLICAS, plan.clocks, tuple(job_.slower))
    job_.train(20)
    ((_, order),) = job_.orders[known:]
    assert order.points[2:] == (0, 0)
    point = plan.frontier[order.points[0] or 0]
    assert order.points[0] == order.points[1] != 0
    assert point.cost.time_s <= began_s * 1.001
    slowest = max(
        at for at, each in enumerate(plan.frontier) if each.cost.time_s <= began_s * 1.0001
    )
    assert order.points[0] == slowest
    assert "replica 1 computes +" in order.words
    job_.train(20)
    assert job_.times_s[-1] == pytest.approx(began_s, rel=2e-3)

    job_.slower = [1.0] * 4
    job_.train(20)
    assert job_.policy.order.points == (0, 0, 0, 0)
    assert "slower than the other replicas any more" in job_.policy.order.words
    assert job_.policy.stage is Stage.PLAN


@pytest.mark.untraced
def test_noise_makes_no_straggler() -> None:
    job_ = Trains(job_plan(_REPLICAS, row=1), noise=0.01)
    job_.train(400)
    assert len(job_.orders) == 1


def test_a_rank_that_is_lost_takes_all_to_auto_for_good() -> None:
    job_ = Trains(job_plan(_ALONE), window=0)
    job_.train(5)
    order = job_.policy.lost(1, "its trainer ended")
    assert order is not None
    assert order.points == (None, None)
    assert order.words == "rank 1: its trainer ended; from now on: auto on all ranks"
    assert job_.policy.lost(0, "too") is None
    job_.train(50)
    assert job_.policy.order is order
    assert cost(_ALONE, all_at(_ALONE, 1)).time_change == 0.0


_JOB = job(data=2, transfer_s=(1e-3,), reduce_s=2e-3)
_ROW = 6
_SLOW, _FAST = Clocks(core_mhz=CLOCKS_MHZ[_ROW - 1]), Clocks(core_mhz=CLOCKS_MHZ[0])


def _mixed(held: Held, of: Job = _JOB) -> JobPlan:
    """Forwards as said, backwards at the fastest."""
    clocks = tuple(
        tuple(
            None if each.profile is None else held if "forward" in each.profile else Held(row=1)
            for each in rank.instructions
        )
        for rank in of.ranks
    )
    return job_plan(of, clocks=clocks)


def _chosen(plan: JobPlan) -> tuple[int, tuple[RankPart, ...]]:
    return JobPolicy(plan).chosen, parts_of(plan)


def test_every_plan_of_the_frontier_takes_an_iteration_in_each_rank() -> None:
    plan = _mixed(Held(row=_ROW))
    policy = JobPolicy(plan)
    for rank, part in enumerate(parts_of(plan)):
        assert len(part.schedules) == len(policy.points)
        for point, schedule in zip(policy.points, part.schedules, strict=True):
            assert math.fsum(schedule.launch_s) == pytest.approx(point.time_s, abs=1e-4)
            busy_s = [schedule.launch_s[at] for at in part.busy]
            assert math.fsum(busy_s) == pytest.approx(point.busy_s[rank])
        assert math.fsum(part.auto_s) == pytest.approx(policy.auto.busy_s[rank])


def test_clocks_change_as_what_was_before_ends_where_it_communicates_first() -> None:
    chosen, parts = _chosen(_mixed(Held(row=_ROW)))
    part = parts[0]
    clocks = part.schedules[chosen].clocks
    for site in part.sites:
        if site.event == "begins":
            wanted = _SLOW if site.path.startswith("forward") else _FAST
            assert clocks[site.launch] == wanted
            before = [each for each in part.sites if each.launch < site.launch][-1]
            if any(first <= before.launch < end for first, end in part.quiet):
                assert {*clocks[before.launch : site.launch + 1]} == {wanted}


def test_else_it_waits_at_the_clock_of_what_it_ran_up_to_a_latency_before_what_comes_next() -> None:
    plan = _mixed(Held(row=_ROW), job())  # transfers are no instructions there
    chosen, (part, _) = _chosen(plan)
    schedule = part.schedules[chosen]
    begins = [site.launch for site in part.sites if site.event == "begins"]
    assert schedule.launch_s[begins[2] - 1] == pytest.approx(0.02)  # for the first backward
    assert schedule.clocks[begins[1] : begins[2]] == (_SLOW, _SLOW)
    assert schedule.clocks[begins[2]] == _FAST
    assert schedule.aims_s[begins[2]] == -plan.latency_s


def test_a_second_clock_begins_at_its_share_of_the_instruction() -> None:
    chosen, parts = _chosen(_mixed(Held(row=_ROW, then=1, share=0.25)))
    part = parts[0]
    first = part.sites[1].launch
    schedule = part.schedules[chosen]
    assert schedule.clocks[first : first + 2] == (_SLOW, _FAST)
    assert schedule.launch_s[first] == pytest.approx(0.25 * 0.01 * 1800 / 1500)
    assert schedule.launch_s[first + 1] == pytest.approx(0.75 * 0.01)
    assert part.auto_s[first : first + 2] == pytest.approx((0.0025, 0.0075))
    assert part.schedules[0].launch_s[first] == pytest.approx(0.005)  # another plan has one clock
    assert first + 1 not in part.marks


def test_clocks_inside_instructions_are_refused() -> None:
    plan = job_plan(_JOB)
    name = "stage 0 forward"
    profile = plan.job.profiles[name]
    rows = list(profile.rows)
    inside = (Segment(launches=1, clocks=Clocks(core_mhz=1500)),)
    rows[1] = msgspec.structs.replace(rows[1], inside=inside, core_mhz=None)
    profiles = {**plan.job.profiles, name: msgspec.structs.replace(profile, rows=tuple(rows))}
    job_ = msgspec.structs.replace(plan.job, profiles=profiles)
    with pytest.raises(UsageError, match="clocks inside of instructions"):
        parts_of(msgspec.structs.replace(plan, job=job_))


def _ranks(plan: JobPlan, window: int = 0) -> tuple[JobPolicy, list[RankPolicy], list[Machine]]:
    ranks = JobRanks(JobPolicy(plan, window=window))
    parts = parts_of(plan)
    machines = [Machine(part.timetable(ranks.job.chosen)) for part in parts]
    for rank, (machine, part) in enumerate(zip(machines, parts, strict=True)):
        RankPolicy(machine, part, rank, ranks)
    return ranks.job, ranks.peers, machines


def _pass(peers: list[RankPolicy], times: int = 1) -> list[str]:
    step = PassedStep(state=State.FOLLOWING, time_s=0.1, busy_s=0.08)
    said = [peer.passed(step) for _ in range(times) for peer in peers]
    return [words for words in said if words]


def test_ranks_take_up_orders_together_and_give_up_together() -> None:
    plan = _mixed(Held(row=_ROW))
    _, peers, machines = _ranks(plan)
    for machine in machines:
        machine.saw(2, 0.0, 0)  # its first instruction begins: before, stages wait for others
    assert [machine.ask(0.0) for machine in machines] == [None] * 4
    assert not _pass(peers[:3])
    assert not peers[0].follows
    (words,) = _pass(peers, 2)
    assert words == "order 1: every rank has armed; from now on: the plan"
    assert {peer.label for peer in peers} == {"plan"}
    asked = [machine.ask(0.0) for machine in machines]
    assert [ask and ask.to_mhz for ask in asked] == [_SLOW.core_mhz] * 4
    for machine, ask in zip(machines, asked, strict=True):
        assert ask is not None
        machine.asked(ask, 0.0, 1e-3)

    assert peers[2].lost("its trainer ended").startswith("order 2: rank 2: its trainer ended")
    assert not peers[1].lost("too")
    asked = [machine.ask(1.0) for machine in machines]
    assert [ask and (ask.domain, ask.to_mhz) for ask in asked] == [(Domain.CORE, None)] * 4
    assert not any(peer.follows for peer in peers)
