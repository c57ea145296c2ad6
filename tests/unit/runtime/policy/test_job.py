"""What the ranks of a job do together: when they are held, and when a straggler sets the pace."""

import numpy as np
import pytest

from made_jobs import all_at, cost, iteration_s, job, job_plan
from underclock.records.job import JobPlan
from underclock.runtime.policy.guard import Stage
from underclock.runtime.policy.job import JobPolicy, Order

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


def test_a_job_that_is_slower_at_auto_too_keeps_its_plan() -> None:
    job_ = Trains(job_plan(_ALONE, row=2))
    job_.train(40)
    job_.slower = [1.1, 1.0]  # a pipeline alone: no other replica could use it
    job_.train(100)
    assert "the job itself became slower" in job_.orders[-1][1].words
    assert job_.policy.order.points == (1, 1)


@pytest.mark.untraced
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


def test_iterations_that_stood_still_or_were_not_seen_count_for_nothing() -> None:
    policy = JobPolicy(job_plan(_REPLICAS), window=0)
    for rank in range(4):
        policy.armed(rank)
    for _ in range(60):
        for rank in range(4):
            policy.passed(rank, 0.1, None if rank == 3 else 0.1)
        for rank in range(4):
            policy.passed(rank, 5.0, 0.1, stalled=rank == 1)
    assert policy.order.generation == 1


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


@pytest.mark.untraced
def test_a_straggler_that_others_make_by_their_plan_is_not_followed_without_end() -> None:
    job_ = Trains(job_plan(_REPLICAS, row=1))
    job_.train(40)
    known = len(job_.orders)
    for _ in range(400):
        # Replica 1 is slower than the others at their plan alone, not where they are slow too.
        weak = 1.1 if job_.policy.order.points[0] == 0 else 1.0
        job_.slower = [1.0, 1.0, weak, weak]
        job_.train(8)
    assert 2 < len(job_.orders) - known < 25
    job_.slower = [1.0] * 4
    job_.train(30)
    assert job_.policy.order.points == (0, 0, 0, 0)  # the way back is never put off
