"""Schedules by name: orders as their papers draw them, and who waits for whom."""

import numpy as np
import pytest

from small_jobs import at_auto, profile, profiles, small_job
from underclock.core.job.network import network_of
from underclock.core.job.schedules import SCHEDULES, Layout
from underclock.errors import DataError, UsageError
from underclock.records.job import InstructionKind, Job

LETTERS = {
    InstructionKind.FORWARD: "F",
    InstructionKind.BACKWARD: "B",
    InstructionKind.WEIGHTS: "W",
    InstructionKind.RECOMPUTE: "R",
    InstructionKind.LOAD: "L",
    InstructionKind.OPTIMIZER: "O",
    InstructionKind.COLLECTIVE: "C",
    InstructionKind.SEND: "s",
    InstructionKind.RECEIVE: "r",
}


def drawn(job: Job, rank: int) -> str:
    """Write what a rank does: F0 F1 B0 …; chunk 1 as F0'."""
    return " ".join(
        f"{LETTERS[each.kind]}{'' if each.microbatch is None else each.microbatch}"
        + "'" * each.chunk
        for each in job.ranks[rank].instructions
    )


def test_gpipe_runs_every_forward_first() -> None:
    job = small_job("gpipe", 2, 3)
    assert drawn(job, 0) == drawn(job, 1) == "F0 F1 F2 B0 B1 B2"


def test_1f1b_takes_turns_after_as_many_forwards_as_stages_follow() -> None:
    job = small_job("1f1b", 3, 4)
    assert drawn(job, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert drawn(job, 1) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert drawn(job, 2) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_interleaved_is_as_megatron_orders_it() -> None:
    job = small_job("interleaved", 2, 4, chunks=2)
    assert drawn(job, 1) == "F0 F1 F0' B0' F1' B1' F2 B0 F3 B1 F2' B2' F3' B3' B2 B3"
    assert drawn(job, 0).startswith("F0 F1 F0' F1' F2 B0' F3 B1'")


def test_zero_bubble_waits_less_than_1f1b_with_as_many_in_flight() -> None:
    given = {f"stage {s} {kind}": profile(0.1) for s in range(4) for kind in ("forward", "weights")}
    given |= {f"stage {s} backward": profile(0.1) for s in range(4)}
    split = small_job("zero-bubble", 4, 8, given)
    whole = small_job("1f1b", 4, 8, given | {f"stage {s} backward": profile(0.2) for s in range(4)})
    waited = [float(network_of(j).blocked_s(at_auto(j))[0]) for j in (split, whole)]
    assert waited == pytest.approx([0.3, 0.9])  # ZB-H1: (S - 1) (F + B - W), 1F1B: (S - 1) (F + 2B)
    for rank in split.ranks:
        kinds = [each.kind for each in rank.instructions]
        held = np.cumsum([{"forward": 1, "weights": -1}.get(kind, 0) for kind in kinds])
        assert held.max() <= 4


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 2), (2, 2), (4, 4), (3, 6)])
def test_every_stage_takes_every_microbatch_once_and_nobody_waits_for_ever(
    schedule: str, stages: int, microbatches: int
) -> None:
    chunks = 2 if schedule == "interleaved" else 1
    for transfer_s in ((), (0.01,)):
        job = small_job(schedule, stages, microbatches, chunks=chunks, transfer_s=transfer_s)
        net = network_of(job)
        busy = at_auto(job)
        assert net.iteration_s(busy) >= max(busy[net.rank == rank].sum() for rank in range(stages))


def test_transfers_hold_both_sides_up_and_cross_at_once() -> None:
    job = small_job("1f1b", 2, 2, transfer_s=(0.5,))
    assert drawn(job, 0) == "F0 s0 F1 s1 B0 r1 B1"
    assert drawn(job, 1) == "r0 F0 B0 r1 F1 B1 s1"
    few = small_job("1f1b", 4, 3, transfer_s=(0.1, 0.2, 0.3))
    assert {each.time_s for each in few.ranks[1].instructions} == {None, 0.1, 0.2}
    network_of(few)
    network_of(small_job("gpipe", 4, 3, transfer_s=(0.1,)))


def test_loads_recomputation_optimizer_and_sums_of_gradients_are_instructions() -> None:
    given = profiles(2) | {f"stage {s} recompute": profile(0.1) for s in range(2)}
    given |= {f"stage {s} optimizer": profile(0.05) for s in range(2)}
    job = small_job("1f1b", 2, 1, given, load_s=0.01, data=2, reduce_s=0.3)
    assert drawn(job, 0) == drawn(job, 2) == "L0 F0 R0 B0 C O"
    assert drawn(job, 1) == "F0 R0 B0 C O"
    meetings = [rank.instructions[-2].meeting for rank in job.ranks]
    assert meetings[0] == meetings[2] != meetings[1] == meetings[3]


def test_what_cannot_be_laid_out_is_refused() -> None:
    with pytest.raises(UsageError, match="no schedule '1f2b'"):
        small_job("1f2b")
    with pytest.raises(UsageError, match="chunks"):
        small_job("1f1b", 2, 2, profiles(4), chunks=2)
    with pytest.raises(UsageError, match="cannot be interleaved"):
        small_job("interleaved", 2, 3, chunks=2)
    with pytest.raises(DataError, match="no profile of 'stage 2 forward'"):
        small_job("1f1b", 3, 3, profiles(2))
    with pytest.raises(UsageError, match="one or more stages, not 0"):
        Layout(stages=0, microbatches=1)
    with pytest.raises(UsageError, match="not negative"):
        Layout(stages=2, microbatches=1, load_s=-1.0)
    with pytest.raises(UsageError, match="2 transfer times for 3 boundaries"):
        Layout(stages=4, microbatches=1, transfer_s=(0.1, 0.2))
