"""measure and refine: campaigns on what ``--gpu`` names, into a file that a later run goes on with.

`measure` runs every kernel at every clock pair that is asked for. `refine` measures in what a board
differs from others of its model: GPUs of one model differ by a few per cent in power, so the best
clocks of one are near those of another, but what they save is not quite the same (arXiv 2601.08539,
section 8).
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import underclock
from underclock.app.backends import default_measuring, open_measurer
from underclock.app.fleet import boards_of
from underclock.app.planning import PlanCosts, decided, under_goal
from underclock.app.switching import switching_as_of
from underclock.campaign.adaptive import Adaptive
from underclock.campaign.loop import CampaignRun, Listed, WindowPolicy, check_time_limit
from underclock.campaign.progress import Expected, Tally, TimeLeft, expected_of
from underclock.campaign.provenance import provenance_of
from underclock.campaign.recording import Recorder, record
from underclock.campaign.refining import SHARE, Refining, hottest_kernel
from underclock.campaign.steer import Steering
from underclock.campaign.survey import Campaign, Grid, survey
from underclock.core.model.boards import check_alike, fit_boards
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.planning.goal import Goal
from underclock.core.step.whole import WHOLE
from underclock.errors import DataError, UsageError
from underclock.hw.base import Capability
from underclock.hw.gpu_names import GpuKind, parse_gpu
from underclock.hw.lease import ClockLeases
from underclock.hw.lockstep import FollowingRank, StoreLine
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.records import (
    MeasurementSettings,
    Plan,
    SampleSet,
    Step,
    Strategy,
)
from underclock.store import SampleSource, as_record
from underclock.tracing.held import held_launcher
from underclock.tracing.ranks import ProcessRank
from underclock.tracing.source import StepFile, StepFunction, as_step

_FEWEST = 12  # windows that tell anything of a board


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
        campaign: Which clocks, how often.
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
        DeviceError, MeasurementError: From the GPU.
    """
    path, step = Path(to), as_step(step)
    campaign = campaign or Campaign()
    measuring = measuring or default_measuring(gpu, adaptive=campaign.may_adapt)
    with open_measurer(
        gpu, measuring=measuring, seed=seed, step=step, run=run, anew=True
    ) as measurer:
        step = measurer.step or step
        provenance = provenance_of(
            measurer,
            measuring=measuring,
            seed=seed if parse_gpu(gpu).is_simulated else None,
            in_situ=campaign.in_situ,
            version=underclock.__version__,
        )
        one = _one_kernel(step) if step is not None and step.obstacle else None
        if one is not None and Capability.RUN not in measurer.capabilities:
            raise UsageError(
                f"{gpu} cannot {Capability.RUN}, and of this step nothing else can be measured: "
                f"{one.obstacle}",
                hint="take that out of the step and trace it again, or measure on a GPU",
            )
        header, points = survey(measurer, one or step, campaign, provenance)
        campaign.check_goal(measurer, header)
        told = progress or (lambda _tally: None)
        adaptive = campaign.on(measurer) is Grid.ADAPTIVE
        if adaptive and not path.exists():
            check_time_limit(
                measurer, header, campaign.time_limit_s, steers=campaign.steers(measurer)
            )
        if one is not None and step is not None:
            header = msgspec.structs.replace(
                header,
                kernels=step.kernels,
                order=step.order,
                modules=step.modules,
                fingerprint=step.fingerprint,
            )

        def take(recorder: Recorder) -> None:
            spent_s = recorder.file.gpu_s
            expected = expected_of(measurer, recorder.samples, campaign, spent_s)
            if expected is not None and expect is not None:
                expect(expected)
            left = None if expected is None else TimeLeft(expected, measurer.now_s)
            policy: WindowPolicy = Listed(recorder, points, campaign)
            if campaign.steers(measurer):
                policy = Steering(recorder, campaign)
            elif adaptive:
                policy = Adaptive(recorder, points, campaign, seed=seed)
            CampaignRun(recorder, policy, campaign, told, left).run()

        return record(measurer, path, header, take, whole=one is not None)


def _one_kernel(step: Step) -> Step:
    """Return a step as one kernel."""
    return msgspec.structs.replace(step, kernels=(WHOLE,), order=(0,), modules=())


def follows(step: Step | None, gpu: str) -> bool:
    """Whether this process is a rank that follows another, as the environment says.

    Args:
        gpu: Where; only real GPUs have ranks that wait for one another.
    """
    if step is None or parse_gpu(gpu).kind is not GpuKind.REAL:
        return False
    rank = ProcessRank.needed(step, os.environ)
    return rank is not None and not rank.leads


def follow(
    step: Step, *, gpu: str, run: StepFunction | StepFile | None = None, anew: bool = True
) -> None:
    """Run what the first rank runs, and hold the clocks it holds, until it is done.

    Args:
        gpu: ``nvml:INDEX``, as the first rank was told; counted on by the rank on its machine.
        run: The step's function, or where it may be found.

    Raises:
        UsageError: This is the first rank, or none.
        NotSupportedError: The step's ranks do not run, or did not meet.
        DeviceError: A launch failed, or clocks cannot be held.
        MeasurementError: The function is not the step that was traced, or the first rank's step is
            another.
    """
    name = parse_gpu(gpu)
    rank = ProcessRank.needed(step, os.environ)
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


def refine(
    plan: Plan | str | Path,
    samples: Sequence[SampleSource],
    *,
    gpu: str,
    to: str | Path,
    measuring: MeasurementSettings | None = None,
    seed: int = 0,
    progress: Callable[[Tally], None] | None = None,
    run: StepFunction | StepFile | None = None,
) -> Plan:
    """Measure on this GPU in what it differs from others of its model, and plan again.

    The whole step at auto, and the few windows that the promise hangs on most: what all boards
    share is known from the samples that the plan was made of. At most a tenth of the windows are
    taken that one of those boards took. What is in the file already is not measured again.

    Args:
        plan: A plan made on another board, or on several, or its file.
        samples: Of each of these boards.
        gpu: ``sim:NAME#UNIT`` or ``nvml:INDEX``.
        to: Samples file, made or continued.
        measuring: How long to wait and measure; by default briefly, for a model joins the samples.
        seed: Of a simulated GPU's noise.
        progress: Told of every sample.
        run: The step's function, or where it may be found.

    Returns:
        The plan for this board, whose goal and latency are those of the plan given.

    Raises:
        UsageError: The GPU is a table, or the file is of another campaign.
        DataError: The plan is of another GPU model, power limit or step than the samples or the
            GPU, or this board is one of those.
        DeviceError, MeasurementError: From the GPU.
    """
    plan, path, others = as_record(plan, Plan), Path(to), boards_of(samples)
    step, goal = _step_of(plan, others[0]), Goal.of(plan)
    parse_gpu(gpu).need(Capability.RUN)
    if measuring is None:
        measuring = default_measuring(gpu, adaptive=True)
    fleet = fit_boards(others)
    # Of what any board takes windows for, the kernels are what is known here.
    least = min(len(board.windows) for board in others)
    campaign = Campaign(grid=Grid.ADAPTIVE, max_samples=max(_FEWEST, round(SHARE * least)))
    with open_measurer(gpu, measuring=measuring, seed=seed, step=step, run=run) as measurer:
        # What is measured is costs at clocks; the limit to plan for is applied to those.
        plan.check_gpu(measurer.info(), plan.gpu.power_limit_w)
        provenance = provenance_of(
            measurer,
            measuring=measuring,
            seed=seed if parse_gpu(gpu).is_simulated else None,
            in_situ=campaign.in_situ,
            version=underclock.__version__,
        )
        header, _ = survey(measurer, measurer.step or step, campaign, provenance)
        sentence = f"measured on {gpu} in what it differs from other boards only: refine plans it"
        header = msgspec.structs.replace(header, warnings=(*header.warnings, sentence))
        check_alike((*others, msgspec.structs.replace(header, windows=others[0].in_situ)))

        def fit(own: SampleSet) -> CostEstimate:
            return fit_boards((own, *others), fleet).board(0)

        def take(recorder: Recorder) -> None:
            hottest = hottest_kernel(others[0])
            policy = Refining(recorder, campaign, goal, hottest, fit)
            CampaignRun(recorder, policy, campaign, progress or (lambda _tally: None)).run()

        own = record(measurer, path, header, take)
    estimated = fit(own)
    costs = PlanCosts(table=estimated.table, risk=estimated, known=estimated.table)
    told = f"refined with {len(own.windows)} windows from what is known of {len(others)} boards"
    made = decided(own, goal, under_goal(own, costs, goal), switching_as_of(plan))
    return msgspec.structs.replace(made, warnings=(told, *made.warnings))


def _step_of(plan: Plan, board: SampleSet) -> Step:
    """Return the step that a plan is for, and that a board was measured for."""
    if all(arm.name is not Strategy.KERNEL_GLOBAL for arm in plan.arms):
        raise DataError(
            f"the plan is of {plan.workload}, which ran whole only: there are no kernels to refine",
            hint="measure the step on this GPU with `underclock measure`",
        )
    step = plan.step()
    if step is None or (plan.workload, plan.fingerprint) != (board.workload, board.fingerprint):
        raise DataError(
            f"the plan is of {plan.workload}, and the samples are of another step",
            hint="name the samples that the plan was made of",
        )
    return step
