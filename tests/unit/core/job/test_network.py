"""Who waits for whom: when things begin and end, against cases worked out by hand."""

import pytest

from job_costs import slack_s
from small_jobs import at_auto, fixed, job_of_ranks, small_job
from underclock.arrays import Floats
from underclock.core.job.network import Network, network_of
from underclock.core.job.tables import auto_clocks, timeline
from underclock.errors import DataError
from underclock.records.job import Held, InstructionKind, Job, Wait

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


def test_spans_at_auto_are_the_network_s() -> None:
    job = small_job(stages=2, microbatches=2, transfer_s=(0.05,))
    net, taken_s = network_of(job), at_auto(job)
    spans = timeline(job, auto_clocks(job))
    assert [span.begins_s for span in spans] == pytest.approx(list(net.begins_s(taken_s)))
    assert [span.ends_s for span in spans] == pytest.approx(list(net.ends_s(taken_s)))
    assert {span.core_mhz for span in spans if span.has_profile} == {1400}
    assert {span.core_mhz for span in spans if not span.has_profile} == {None}
    assert spans[0].what == "forward of microbatch 0"


def test_an_instruction_at_two_clocks_is_two_spans() -> None:
    spans = timeline(small_job(stages=1, microbatches=1), ((Held(0, 2, 0.5), Held(2)),))
    assert [span.core_mhz for span in spans] == [1000, 1400, 1400]
    first, second, third = spans
    assert first.ends_s == second.begins_s == pytest.approx(0.5 * 0.1 * 1.4)
    assert second.ends_s == third.begins_s == pytest.approx(0.5 * 0.1 * 1.4 + 0.05)
