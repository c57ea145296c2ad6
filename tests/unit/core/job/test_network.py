"""Who waits for whom: when things begin and end, against cases worked out by hand."""

import numpy as np
import pytest

from job_costs import slack_s
from small_jobs import at_auto, fixed, job_of_ranks, small_job
from underclock.arrays import Floats
from underclock.core.job.network import Network, network_of
from underclock.errors import DataError
from underclock.records.job import InstructionKind, Job, Wait

SEND, RECEIVE = InstructionKind.SEND, InstructionKind.RECEIVE


def network(job: Job) -> tuple[Network, Floats]:
    return network_of(job), at_auto(job)


def test_a_receiver_waits_for_its_sender_and_the_lag() -> None:
    job = job_of_ranks((fixed(1.0),), (fixed(0.25), fixed(2.0)), waits=(Wait(1, 1, 0, 0, 0.5),))
    net, taken_s = network(job)
    assert net.begins_s(taken_s).tolist() == [0.0, 0.0, 1.5]
    assert net.ends_s(taken_s).tolist() == [1.0, 0.25, 3.5]
    assert net.iteration_s(taken_s) == 3.5
    assert net.blocked_s(taken_s).tolist() == [2.5, 1.25]
    assert slack_s(net, taken_s).tolist() == [0.0, 1.25, 0.0]


def test_of_two_waits_for_one_the_longer_counts() -> None:
    waits = (Wait(1, 0, 0, 0, 0.5), Wait(1, 0, 0, 0, 0.75))
    net, taken_s = network(job_of_ranks((fixed(1.0),), (fixed(1.0),), waits=waits))
    assert net.iteration_s(taken_s) == 2.75


def test_what_meets_begins_when_the_last_is_there_and_ends_together() -> None:
    job = job_of_ranks(
        (fixed(1.0), fixed(0.5, SEND, meeting=7), fixed(1.0)),
        (fixed(3.0), fixed(0.25, RECEIVE, meeting=7)),
    )
    net, taken_s = network(job)
    assert net.begins_s(taken_s).tolist() == [0.0, 3.0, 3.5, 0.0, 3.0]
    assert net.ends_s(taken_s).tolist() == [1.0, 3.5, 4.5, 3.0, 3.5]
    assert net.taken_s(taken_s).tolist() == [1.0, 0.5, 1.0, 3.0]
    assert slack_s(net, taken_s).tolist() == [2.0, 0.0, 0.0, 0.0, 0.25]


def test_streams_of_a_rank_run_side_by_side() -> None:
    job = job_of_ranks(
        (fixed(1.0), fixed(5.0, InstructionKind.COLLECTIVE, stream=1), fixed(2.0)),
        waits=(Wait(0, 1, 0, 0),),
    )
    net, taken_s = network(job)
    assert net.ends_s(taken_s).tolist() == [1.0, 6.0, 3.0]
    assert net.blocked_s(taken_s).tolist() == [3.0]


def test_many_draws_at_once_are_as_each_by_itself() -> None:
    net, taken_s = network(small_job(stages=3, microbatches=4, transfer_s=(0.05,)))
    draws = taken_s * np.random.default_rng(3).uniform(0.8, 1.2, size=(2, 5, len(taken_s)))
    together = net.iteration_s(draws)
    assert together.shape == (2, 5)
    assert together[1, 4] == pytest.approx(float(net.iteration_s(draws[1, 4])))
    assert net.blocked_s(draws)[1, 4] == pytest.approx(net.blocked_s(draws[1, 4]))


def test_slack_is_what_each_may_take_longer() -> None:
    net, taken_s = network(small_job(stages=3, microbatches=3))
    whole_s = net.iteration_s(taken_s)
    for at, left_s in enumerate(slack_s(net, taken_s)):
        longer = taken_s.copy()
        longer[at] += left_s
        assert net.iteration_s(longer) == pytest.approx(float(whole_s))
        longer[at] += 0.01
        assert net.iteration_s(longer) == pytest.approx(float(whole_s) + 0.01)


def test_a_circle_is_refused_and_named() -> None:
    job = job_of_ranks(
        (fixed(1.0, RECEIVE), fixed(1.0)),
        (fixed(1.0, RECEIVE), fixed(1.0)),
        waits=(Wait(0, 0, 1, 1), Wait(1, 0, 0, 1)),
    )
    with pytest.raises(DataError, match="circle: the receive of rank 0 is in it"):
        network_of(job)


def test_what_waits_for_a_circle_is_in_none() -> None:
    job = job_of_ranks(
        (fixed(1.0), fixed(1.0)),
        (fixed(1.0),),
        (fixed(1.0),),
        waits=(Wait(0, 0, 1, 0), Wait(1, 0, 2, 0), Wait(2, 0, 1, 0)),
    )
    with pytest.raises(DataError, match=r"of rank [12] is in it"):
        network_of(job)
