"""Sums of what runs saved: pure arithmetic on entries."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_entries import BEGAN_S, HOUR_S, KWH_J, entry, untold
from underclock.ledger.entries import (
    COUNTER,
    HEAT,
    LedgerEntry,
    SavedAgainst,
    SavedBy,
    SavedTotal,
    counted_once,
    hashed,
    totals,
)
from underclock.records import Evidence


def _only(*entries: LedgerEntry) -> SavedTotal:
    (total,), rest = totals(entries)
    assert not rest
    return total


def test_one_run_is_what_it_drew_against_auto() -> None:
    total = _only(entry())

    assert total.saved_j == pytest.approx(0.1 * KWH_J)
    reach_j = math.hypot(0.05, COUNTER * 0.1, HEAT * 0.1) * KWH_J
    assert total.saved_interval_j == pytest.approx((0.1 * KWH_J - reach_j, 0.1 * KWH_J + reach_j))
    assert (total.runs, total.gpus, total.gpu_s, total.steps) == (1, 1, HOUR_S, 100)


def test_eight_ranks_on_one_node_are_eight_gpus_once_each() -> None:
    """Each rank's conductor names all GPUs of the node, as where each begins `run` by mistake."""
    ranks = [
        entry(run=f"run of rank {rank}", gpu=f"gpu {at}", rank=at, began_s=BEGAN_S + rank)
        for rank in range(8)
        for at in range(8)
    ]
    total = _only(*ranks)

    assert total.gpus == 8
    assert total.gpu_s == pytest.approx(8 * (HOUR_S + 7.0))  # the last began 7 s after the first
    assert total.saved_j == pytest.approx(0.8 * KWH_J, rel=0.003)


def test_a_rank_that_was_started_again_counts_once_while_the_old_one_still_runs() -> None:
    again = entry(run="run 2", began_s=BEGAN_S + 0.5 * HOUR_S)
    total = _only(entry(), again)

    assert total.gpu_s == pytest.approx(1.5 * HOUR_S)
    assert total.saved_j == pytest.approx(0.15 * KWH_J)
    assert total.steps == 150


def test_what_can_be_told_is_counted_first_and_blocks_before_promises() -> None:
    promised = entry(run="run 2", against=SavedAgainst.PROMISE)
    parts = counted_once([untold(run="run 3"), promised, entry()])

    assert [(each.run, share) for each, share in parts] == [
        ("run 1", 1.0),
        ("run 2", 0.0),
        ("run 3", 0.0),
    ]


def test_what_nobody_can_tell_is_apart() -> None:
    told, rest = totals([entry(), untold(gpu="gpu 1")])

    assert [total.energy_j for total in told] == [0.9 * KWH_J]
    assert [(each.runs, each.energy_j) for each in rest] == [(1, 0.9 * KWH_J)]
    assert rest[0].why == ("cannot tell, because 2 rounds are too few",)


def test_steps_of_which_nobody_can_tell_are_apart_from_those_beside_them() -> None:
    told, rest = totals([entry(untold_j=7.0)])

    assert (told[0].energy_j, told[0].saved_j) == pytest.approx((0.9 * KWH_J, 0.1 * KWH_J))
    assert (rest[0].energy_j, rest[0].runs) == (7.0, 1)
    assert "neither auto nor as planned" in rest[0].why[0]


def test_evidence_is_never_added_up_nor_are_promises_and_blocks() -> None:
    told, _ = totals(
        [
            entry(),
            entry(gpu="gpu 1", evidence=Evidence.SIMULATED),
            entry(gpu="gpu 2", against=SavedAgainst.PROMISE),
        ]
    )

    assert len({(total.evidence, total.against) for total in told}) == len(told) == 3


def test_errors_add_up_within_a_comparison_and_in_squares_between_them() -> None:
    """What counters are wrong by adds up over all, and of blocks what heat is."""
    half_j = 0.05 * KWH_J
    one_run = [entry(gpu=f"gpu {at}") for at in range(4)]
    four_runs = [entry(gpu=f"gpu {at}", run=f"run {at}") for at in range(4)]
    promises = [
        entry(against=SavedAgainst.PROMISE, gpu=e.gpu, run=e.run, plan=e.run) for e in four_runs
    ]

    def half(entries: list[LedgerEntry]) -> float:
        total = _only(*entries)
        reach_j = total.saved_interval_j[1] - total.saved_j
        of_blocks = total.against is SavedAgainst.BLOCKS
        alike = math.hypot(COUNTER, HEAT) if of_blocks else COUNTER
        return math.sqrt(reach_j**2 - (alike * 0.4 * KWH_J) ** 2)

    assert half(one_run) == pytest.approx(4 * half_j)
    assert half(four_runs) == pytest.approx(2 * half_j)
    assert half(promises) == pytest.approx(4 * half_j)


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        (SavedBy.JOB, ["bert", "gpt"]),
        (SavedBy.GPU, ["A100 gpu 1", "H200 gpu 0"]),
        (SavedBy.MONTH, ["2025-11", "2025-12"]),
        (None, [""]),
    ],
)
def test_runs_are_summed_by_job_gpu_or_month(by: SavedBy | None, groups: list[str]) -> None:
    other = entry(run="run 2", job="bert", gpu="gpu 1", gpu_name="A100", began_s=BEGAN_S - 1.0)

    assert [total.group for total in totals([entry(), other], by)[0]] == groups


_SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=12)


@given(_SPANS)
def test_time_that_is_counted_is_the_union_of_all_spans(spans: list[tuple[int, int]]) -> None:
    entries = [
        entry(run=f"run {at}", began_s=BEGAN_S + from_s, lasted_s=float(lasted_s))
        for at, (from_s, lasted_s) in enumerate(spans)
    ]
    seconds = {second for from_s, lasted_s in spans for second in range(from_s, from_s + lasted_s)}

    counted_s = math.fsum(each.lasted_s * share for each, share in counted_once(entries))
    assert counted_s == pytest.approx(len(seconds), abs=1e-5)


def test_an_entry_has_a_saving_or_says_why_not() -> None:
    for fields in ({"untold": "why"}, {"auto_j": None}, {"auto_interval_j": None}):
        with pytest.raises(ValueError, match="or says why it has none"):
            entry(**fields)
    with pytest.raises(ValueError, match="does not hold"):
        entry(auto_interval_j=(0.0, 1.0))
    assert hashed("GPU-1") != hashed("GPU-2")
    assert "GPU" not in hashed("GPU-1")
