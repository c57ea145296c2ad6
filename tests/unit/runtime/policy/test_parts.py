"""A job's plan as each rank's controller holds it."""

import math

import msgspec
import pytest

from made_jobs import CLOCKS_MHZ, all_at, job, job_plan
from underclock.errors import UsageError
from underclock.records import AUTO, Clocks, Segment
from underclock.records.job import Held, Job, JobPlan
from underclock.records.latencies import Domain
from underclock.runtime.machine.machine import Machine
from underclock.runtime.machine.steps import PassedStep, State
from underclock.runtime.policy.job import JobPolicy
from underclock.runtime.policy.parts import RankPart, parts_of
from underclock.runtime.policy.ranks import JobRanks, RankPolicy

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


def test_it_is_quiet_from_the_end_of_what_it_computes_until_it_computes_again() -> None:
    chosen, parts = _chosen(job_plan(_JOB))
    for part in parts:
        quiet = {at for first, end in part.quiet for at in range(first, end)}
        assert not quiet & set(part.busy)
        assert {end for each in part.quiet for end in each} <= {*part.marks, len(part.auto_s)}
        upto = part.timetable(chosen)
        assert (upto.quiet, upto.busy) == (part.quiet, frozenset(part.busy))
    assert parts[0].quiet[-1][1] == len(parts[0].auto_s)  # gradients are summed at the end
    assert not parts_of(job_plan(job()))[0].quiet  # where nothing is said to be a transfer


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
    inside = (Segment(launches=1, core_mhz=1500, mem_mhz=None),)
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


def test_one_clock_for_all_is_asked_for_once() -> None:
    plan = job_plan(_JOB, row=_ROW)
    decides, _, machines = _ranks(plan)
    table = machines[0].timetable
    assert {*table.clocks} == {_SLOW}
    assert (table.planned, table.calls) == (0, 0.0)
    assert len(table.changes[Domain.CORE]) == 1
    auto = job_plan(_JOB, clocks=all_at(_JOB, 0))
    assert {*parts_of(auto)[0].timetable(JobPolicy(auto).chosen).clocks} == {AUTO}
    assert decides.order.generation == 0


def test_the_cap_frees_a_rank_of_locks_under_every_order() -> None:
    plan = _mixed(Held(row=_ROW))
    _, peers, machines = _ranks(plan)
    _pass(peers, 2)
    first = next(at for at, pair in enumerate(machines[0].timetable.clocks) if pair == _FAST)
    assert f"launches {first} on" in peers[0].capped(frozenset({first}))
    assert machines[0].timetable.clocks[first] == AUTO
    peers[0].take_up(0)
    assert machines[0].timetable.busy


def test_a_plan_that_was_never_held_says_why() -> None:
    _, peers, _ = _ranks(job_plan(_JOB), window=20)
    uncounted = PassedStep(state=State.FOLLOWING, time_s=0.1, counted=False)
    assert not peers[0].passed(uncounted)
    assert "not every rank of the job was seen" in peers[0].ends()
    assert not peers[1].ends()
    _pass(peers, 3)
    assert "before it was known what iterations take at auto" in peers[0].ends()
    _pass(peers, 40)
    assert not peers[0].ends()
