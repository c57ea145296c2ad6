"""What a profiler's view of a step that is no graph tells of its launches."""

from collections.abc import Sequence

import pytest

from underclock.hw.cuda.durations import MARKS, EagerRound, eager_durations
from underclock.records.launches import Node, NodeKind, TracedActivity

Calls = list[list[TracedActivity]]
_STEP = (
    Node(kind=NodeKind.MEMSET),
    Node(kind=NodeKind.KERNEL, function="mm"),
    Node(kind=NodeKind.KERNEL, function="gelu"),
)
_ROUND = EagerRound(nodes=_STEP, places=(0, 0, 1), steps=1)


def ran(function: str, start_s: float, duration_s: float) -> TracedActivity:
    kind = NodeKind.KERNEL if function else NodeKind.MEMSET
    return TracedActivity(kind=kind, function=function, start_s=start_s, duration_s=duration_s)


def mark(at_s: float) -> list[TracedActivity]:
    return [ran("spin_kernel", at_s + each, 1.0) for each in range(MARKS)]


def calls(*done: tuple[str, float, float]) -> Calls:
    return [[ran(*one)] for one in done]


def one_step(at_s: float = 3.0) -> Calls:
    """Wait for a second, then run a memset, a product, another wait, and a last kernel."""
    return calls(("", at_s + 1.0, 1.0), ("mm", at_s + 2.0, 4.0), ("gelu", at_s + 8.0, 2.0))


def test_a_launch_lasts_until_the_next_so_that_all_add_up_to_the_step() -> None:
    found = eager_durations([mark(0.0), *one_step(), mark(13.0)], _ROUND)

    assert found is not None
    assert found.mean_s == {0: 8.0, 1: 2.0}
    assert found.waited == pytest.approx(3.0 / 10.0)


def test_rounds_that_were_seen_in_part_do_not_count() -> None:
    seen = [*one_step()[1:], mark(20.0), *one_step(23.0), mark(33.0), *one_step(36.0)]
    found = eager_durations(seen, _ROUND)

    assert found is not None
    assert found.mean_s == {0: 8.0, 1: 2.0}


def test_launches_are_averaged_over_rounds() -> None:
    longer = calls(("", 4.0, 1.0), ("mm", 5.0, 6.0), ("gelu", 11.0, 4.0))
    found = eager_durations([mark(0.0), *longer, mark(15.0), *one_step(18.0), mark(28.0)], _ROUND)

    assert found is not None
    assert found.mean_s == {0: 8.0, 1: 3.0}


def test_launches_are_averaged_over_the_steps_of_a_round() -> None:
    round_ = EagerRound(nodes=_STEP, places=(0, 0, 1), steps=2)
    found = eager_durations([mark(0.0), *one_step(), *one_step(12.0), mark(22.0)], round_)

    assert found is not None
    assert found.mean_s == {0: 7.5, 1: 2.0}


def test_activities_of_one_call_count_each() -> None:
    """The user's own graphs launch several at once."""
    together = [[one for call in one_step() for one in call]]
    found = eager_durations([mark(0.0), *together, mark(13.0)], _ROUND)

    assert found is not None
    assert found.mean_s == {0: 8.0, 1: 2.0}


@pytest.mark.parametrize(
    ("added", "without", "expected"),
    [
        ([("other", 9.5, 0.5)], None, {0: 1.0, 5: 1.0, 9: 1.0}),
        ([], 5, {4: 1.0, 5: 1.0, 6: 1.0}),
        ([], 0, {0: 1.0, 1: 1.0}),
        ([], 9, {8: 1.0, 9: 1.0}),
    ],
    ids=["one more", "one less", "the first less", "the last less"],
)
def test_a_few_launches_may_differ(
    added: Sequence[tuple[str, float, float]], without: int | None, expected: dict[int, float]
) -> None:
    nodes = tuple(Node(kind=NodeKind.KERNEL, function=f"k{n}") for n in range(10))
    round_ = EagerRound(nodes=nodes, places=tuple(range(10)), steps=1)
    own = [(f"k{n}", 3.0 + n, 1.0) for n in range(10) if n != without]
    done = sorted([*own, *added], key=lambda one: one[1])
    found = eager_durations([mark(0.0), *calls(*done), mark(13.0)], round_)

    assert found is not None
    assert sum(found.mean_s.values()) == pytest.approx(10.0)
    assert {place: found.mean_s[place] for place in expected} == pytest.approx(expected)


def test_a_step_that_launches_something_else_tells_nothing() -> None:
    others = calls(("a", 4.0, 1.0), ("b", 5.0, 1.0), ("c", 6.0, 1.0))
    assert eager_durations([mark(0.0), *others, mark(13.0)], _ROUND) is None


def test_company_is_told_apart_by_its_place_at_the_end() -> None:
    round_ = EagerRound(nodes=_STEP, places=(0, 0, 1), steps=1, company=(2, 2, 3))
    company = [ran("mm", 13.0, 3.0), ran("mm", 16.0, 5.0), ran("spin_kernel", 21.0, 7.0)]
    found = eager_durations([mark(0.0), *one_step(), company, mark(30.0)], round_)

    assert found is not None
    assert found.mean_s == {0: 8.0, 1: 2.0, 2: 4.0, 3: 7.0}


def test_a_round_without_its_company_does_not_count() -> None:
    round_ = EagerRound(nodes=_STEP, places=(0, 0, 1), steps=1, company=(2, 2, 3))
    assert eager_durations([mark(0.0), *one_step(), mark(30.0)], round_) is None
    assert eager_durations([mark(0.0), mark(30.0)], round_) is None


def test_company_by_itself() -> None:
    round_ = EagerRound(nodes=(), places=(), steps=0, company=(1,))
    idle = [[ran("spin_kernel", 3.0, 7.0)]]
    found = eager_durations([mark(0.0), *idle, mark(10.0)], round_)
    strange = eager_durations([mark(0.0), *one_step(), *idle, mark(10.0)], round_)

    assert found is not None
    assert (found.mean_s, found.waited) == ({1: 7.0}, 0.0)
    assert strange is None


def test_launches_that_took_no_time_tell_nothing() -> None:
    at_once = calls(("", 4.0, 1.0), ("mm", 13.0, 1.0), ("gelu", 13.0, 1.0))
    assert eager_durations([mark(0.0), *at_once, mark(13.0)], _ROUND) is None
