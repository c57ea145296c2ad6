"""follow: a rank that runs what the first of its job's ranks measures, as often."""

import os

from underclock.errors import UsageError
from underclock.hw.cuda.store_line import StoreLine
from underclock.hw.lease import ClockLeases
from underclock.hw.lockstep import FollowingRank
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.records import Step
from underclock.stages.gpu_names import GpuKind, parse_gpu
from underclock.stages.ranks import rank_of
from underclock.stages.real import held_launcher
from underclock.stages.step_source import StepFile, StepFunction


def follows(step: Step | None, gpu: str) -> bool:
    """Whether this process is a rank that follows another, as the environment says.

    Args:
        step: What is to be measured.
        gpu: Where; only real GPUs have ranks that wait for one another.

    Raises:
        UsageError: No such kind of GPU, or the environment makes no sense.
        NotSupportedError: The step's other ranks do not run.
    """
    if step is None or parse_gpu(gpu).kind is not GpuKind.REAL:
        return False
    rank = rank_of(step, os.environ)
    return rank is not None and not rank.leads


def follow(
    step: Step, *, gpu: str, run: StepFunction | StepFile | None = None, anew: bool = True
) -> None:
    """Run what the first rank runs, and hold the clocks it holds, until it is done.

    Args:
        step: Of this rank.
        gpu: ``nvml:INDEX``, as the first rank was told; counted on by the rank on its machine.
        run: The step's function, or where it may be found.
        anew: As for `real.step_now`.

    Raises:
        UsageError: This is the first rank, or none.
        NotSupportedError: The step's ranks do not run, or did not meet.
        DeviceError: A launch failed, or clocks cannot be held.
        MeasurementError: The function is not the step that was traced, or the first rank's step is
            another.
    """
    name = parse_gpu(gpu)
    rank = rank_of(step, os.environ)
    if rank is None or rank.leads:
        raise UsageError(
            "there is no other rank to follow", hint="the first rank measures; others follow it"
        )
    with nvml_session():
        device = NvmlGpu(rank.gpu(name.index))
        follower = FollowingRank(StoreLine())
        with (
            held_launcher(device, step, run, anew=anew, pace=follower) as (launcher, now),
            ClockLeases(device) as leases,
        ):
            follower.follow(launcher, now.step.kernels, leases)
