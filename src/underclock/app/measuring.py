"""measure: a campaign on what ``--gpu`` names, into a file that a later run goes on with."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

import underclock
from underclock.app.backends import default_measuring, guard_of, open_gpu, open_measurer
from underclock.campaign.adaptive import Adaptive
from underclock.campaign.grid import (
    Campaign,
    Grid,
    Points,
    SharedRecorder,
    StepsFirst,
    share_of,
    survey,
)
from underclock.campaign.loop import CampaignRun, Listed, Steering, check_time_limit
from underclock.campaign.progress import Expected, Tally, TimeLeft, expected_of
from underclock.campaign.recording import Recorder, WindowPolicy, record
from underclock.core.step.whole_step import WHOLE
from underclock.errors import DataError, NotSupportedError, UsageError
from underclock.hw.base import Capability, GpuKind, Measurer, parse_gpu
from underclock.hw.lease import ClockLeases
from underclock.hw.lockstep import FollowingRank, StoreLine
from underclock.hw.measurer import ReplayMeasurer
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.records import MeasurementSettings, Plan, Provenance, SampleSet, Step, Strategy
from underclock.tracing.held import held_launcher
from underclock.tracing.job_files import ProcessRank
from underclock.tracing.source import StepFile, StepFunction, as_step


def measure(
    step: Step | str | Path | None = None,
    *,
    gpu: str,
    to: str | Path,
    campaign: Campaign | None = None,
    measuring: MeasurementSettings | None = None,
    seed: int = 0,
    progress: Callable[[Tally], None] | None = None,
    expect: Callable[[Expected], None] | None = None,
    run: StepFunction | StepFile | None = None,
) -> SampleSet:
    """Measure a step's kernels, going on where an earlier run into the same file stopped.

    Args:
        step: What to measure: a step, its file, or a named workload; not needed where a table
            brings its own kernels.
        gpu: ``sim:NAME``, ``replay:TABLE.csv`` or ``nvml:INDEX``.
        to: Samples file, made or continued.
        campaign: Which clocks, how often; near a plan, its step is what is measured.
        measuring: How long to wait and measure.
        seed: Of a simulated GPU's noise.
        progress: Told of every sample.
        expect: Told before the first what all of it will take; not of a table.
        run: The step's function, or where it may be found; by default under the working directory.

    Returns:
        Everything in the file.

    Raises:
        UsageError: No step where one is needed, clocks the GPU lacks, or a file of another
            campaign.
        DataError: The plan to measure near is of another GPU model, power limit or step.
        DeviceError, MeasurementError: From the GPU.
    """
    campaign = campaign or Campaign()
    path, step = Path(to), as_step(step) or _step_near(campaign.near)
    measuring = measuring or default_measuring(gpu, adaptive=campaign.may_adapt)
    with open_measurer(
        gpu, measuring=measuring, seed=seed, step=step, run=run, anew=True
    ) as measurer:
        step = measurer.step or step
        if (near := campaign.near) is not None:
            near.check_gpu(measurer.info())
            if step is None or step.fingerprint != near.step.fingerprint:
                raise DataError(
                    f"the plan is of {near.workload}, and this is another step",
                    hint="leave STEP away: the plan has its own",
                )
        one = None
        if step is not None and step.obstacle:
            one = msgspec.structs.replace(step, kernels=(WHOLE,), order=(0,), modules=())
        if one is not None and Capability.RUN not in measurer.capabilities:
            raise UsageError(
                f"{gpu} cannot {Capability.RUN}, and of this step nothing else can be measured: "
                f"{one.obstacle}",
                hint="take that out of the step and trace it again, or measure on a GPU",
            )
        header, points = surveyed(
            measurer, one or step, campaign, gpu=gpu, measuring=measuring, seed=seed
        )
        campaign.check_goal(measurer)
        if campaign.on(measurer) is Grid.ADAPTIVE and not path.exists():
            share, steers = share_of(header, campaign), campaign.steers(measurer)
            check_time_limit(measurer, share, campaign.time_limit_s, steers=steers)
        header = msgspec.structs.replace(header, step=step or header.step)

        def take(recorder: Recorder) -> None:
            spent_s = recorder.file.gpu_s
            expected = expected_of(
                measurer, share_of(recorder.samples, campaign), campaign, spent_s
            )
            if expected is not None and expect is not None:
                expect(expected)
            left = None if expected is None else TimeLeft(expected, measurer.now_s)
            policy = _policy_of(recorder, points, campaign, seed)
            CampaignRun(recorder, policy, campaign, progress or (lambda _tally: None), left).run()

        return record(measurer, path, header, take, whole=one is not None)


def surveyed(
    measurer: Measurer,
    step: Step | None,
    campaign: Campaign,
    *,
    gpu: str,
    measuring: MeasurementSettings,
    seed: int,
) -> tuple[SampleSet, Points]:
    """Return what the file of a campaign says before all samples, and what is to be measured."""
    runs = Capability.RUN in measurer.capabilities
    replayed = measurer.table.provenance if isinstance(measurer, ReplayMeasurer) else None
    provenance = Provenance(
        measuring=measuring if runs else None,
        in_situ=campaign.in_situ and runs,
        seed=seed if parse_gpu(gpu).is_simulated else None,
        table=replayed.table if replayed else None,
        version=underclock.__version__,
    )
    header, points = survey(measurer, step, campaign, provenance)
    most, kernels = campaign.max_samples, -(-len(header.kernels) // campaign.share[1])
    if most is not None and most < kernels and not campaign.steers(measurer):
        raise UsageError(
            f"{most} samples are fewer than the {kernels} kernels, of which each needs one at auto",
            hint=f"allow at least {3 * kernels}: a plan needs more clocks of each",
        )
    return header, points


def _policy_of(recorder: Recorder, points: Points, campaign: Campaign, seed: int) -> WindowPolicy:
    steers, shared = campaign.steers(recorder.measurer), campaign.share[1] > 1
    if steers and shared:
        raise NotSupportedError(
            "clocks are steered here, one mix after the other, which many GPUs do not share",
            hint="with root clocks are held; or measure each GPU by itself, then merge",
        )
    if steers:
        return Steering(recorder, campaign)
    takes = SharedRecorder(recorder, campaign) if shared else recorder
    if shared:
        mine = {kernel.name for kernel in takes.samples.kernels}
        points = [(clocks, [each for each in some if each.name in mine]) for clocks, some in points]
    policy: WindowPolicy = Listed(takes, points, campaign)
    if campaign.on(recorder.measurer) is Grid.ADAPTIVE:
        policy = Adaptive(takes, points, campaign, seed=seed)
    return StepsFirst(recorder, policy, campaign) if shared else policy


def file_of(path: Path, gpu: str) -> Path:
    """Return where samples go: of a name, ``%h`` is this host, and ``%g`` the GPU's board."""
    name = path.name.replace("%h", socket.gethostname().partition(".")[0])
    if "%g" in name:
        with open_gpu(parse_gpu(gpu)) as opened:
            uuid = opened.gpu.info().uuid or ""
        name = name.replace("%g", uuid.removeprefix("GPU-").partition("-")[0])
    return path.with_name(name)


def _step_near(plan: Plan | None) -> Step | None:
    if plan is None:
        return None
    if not plan.step.order or all(arm.name is not Strategy.KERNEL_GLOBAL for arm in plan.arms):
        raise DataError(
            f"the plan of {plan.workload} has no clocks of kernels that can be measured alone",
            hint="measure the step on this GPU without --near",
        )
    return plan.step


def follow(step: Step, *, gpu: str, run: StepFunction | StepFile | None = None) -> bool:
    """Run what the first rank runs, and hold the clocks it holds, until it is done.

    It is false, and nothing is run, where the environment makes this process no follower.
    """
    name = parse_gpu(gpu)
    rank = ProcessRank.needed(step, os.environ) if name.kind is GpuKind.REAL else None
    if rank is None or rank.leads:
        return False
    with nvml_session():
        device = NvmlGpu(rank.gpu(name.index))
        follower = FollowingRank(StoreLine().hear)
        with (
            guard_of(device) as device.write,
            held_launcher(device, step, run, anew=True, pace=follower) as (launcher, _),
            ClockLeases(device) as leases,
        ):
            follower.follow(launcher.loop, launcher.traced.step.kernels, leases)
    return True
