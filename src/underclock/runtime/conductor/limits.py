"""What a GPU says of its power limit, where watts may be moved between the ranks of a node."""

from collections.abc import Sequence

from underclock.errors import NotSupportedError
from underclock.hw.nvml import NvmlGpu
from underclock.records.job import JobPlan
from underclock.runtime.policy.job import PlannedPoint
from underclock.runtime.policy.watts import Board, needs_of


def board_of(gpu: NvmlGpu, plan: JobPlan, points: Sequence[PlannedPoint], rank: int) -> Board:
    """Return the GPU of a rank as one whose limit may become another.

    Raises:
        NotSupportedError: It does not say which limits it takes.
    """
    info = gpu.info()
    if info.power_range_w is None:
        raise NotSupportedError(
            f"rank {rank}'s GPU does not say which power limits it takes",
            hint="leave out --node-power: clocks are held without it",
        )
    return Board(
        limit_w=gpu.power_limit_w(),
        range_w=info.power_range_w,
        needs_w=needs_of(plan, points, rank),
    )
