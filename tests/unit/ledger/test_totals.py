"""Sums of what runs saved: pure arithmetic on the lines of a ledger."""

import math

import msgspec
import pytest

from made_entries import BEGAN_S, HOUR_S, KWH_J, gpu, run
from underclock.ledger import (
    COUNTER,
    HEAT,
    LedgerRun,
    SavedAgainst,
    SavedTotal,
    hashed,
    totals,
)
from underclock.records import Evidence


def _only(*runs: LedgerRun) -> SavedTotal:
    (total,) = totals(runs)
    assert not total.why
    return total


def test_one_run_is_what_it_drew_against_auto() -> None:
    total = _only(run())

    assert total.saved_j == pytest.approx(0.1 * KWH_J)
    reach_j = math.hypot(0.05, COUNTER * 0.1, HEAT * 0.1) * KWH_J
    assert total.saved_interval_j == pytest.approx((0.1 * KWH_J - reach_j, 0.1 * KWH_J + reach_j))
    assert (total.runs, total.gpus, total.gpu_s, total.steps) == (1, 1, HOUR_S, 100)


def test_evidence_is_never_added_up_nor_are_promises_and_blocks() -> None:
    told = totals(
        [
            run(),
            run(run="run 2", evidence=Evidence.SIMULATED),
            run(run="run 3", against=SavedAgainst.PROMISE),
        ]
    )

    assert len({(total.evidence, total.against) for total in told}) == len(told) == 3


def test_errors_add_up_within_a_comparison_and_in_squares_between_them() -> None:
    """What counters are wrong by adds up over all, and of blocks what heat is."""
    half_j = 0.05 * KWH_J
    gpus = [gpu(gpu=f"gpu {at}") for at in range(4)]
    one_run = [run(*gpus)]
    four_runs = [run(each, run=f"run of {each.gpu}") for each in gpus]
    promises = [
        msgspec.structs.replace(each, against=SavedAgainst.PROMISE, plan=each.run)
        for each in four_runs
    ]

    def half(runs: list[LedgerRun]) -> float:
        total = _only(*runs)
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
        ("job", ["bert", "gpt"]),
        ("gpu", ["A100 gpu 1", "H200 gpu 0"]),
        ("month", ["2025-11", "2025-12"]),
        (None, [""]),
    ],
)
def test_runs_are_summed_by_job_gpu_or_month(by: str | None, groups: list[str]) -> None:
    other = run(gpu(gpu="gpu 1", name="A100"), run="run 2", job="bert", began_s=BEGAN_S - 1.0)

    assert [total.group for total in totals([run(), other], by)] == groups


def test_a_gpu_of_a_run_has_a_saving_or_says_why_not() -> None:
    for fields in ({"untold": "why"}, {"auto_j": None}, {"auto_interval_j": None}):
        with pytest.raises(ValueError, match="or why it has none"):
            gpu(**fields)
    with pytest.raises(ValueError, match="does not hold"):
        gpu(auto_interval_j=(0.0, 1.0))
    assert hashed("GPU-1") != hashed("GPU-2")
    assert "GPU" not in hashed("GPU-1")
