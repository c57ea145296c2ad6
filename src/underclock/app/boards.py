"""fleet and refine: plans for boards of one model, of which a few were measured.

GPUs of one model differ by a few per cent in power, so the best clocks of one are near those of
another, but what they save is not quite the same (arXiv 2601.08539, section 8). `plan_fleet` plans
for boards that nobody measured; `refine` measures in what a board differs from others.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from scipy.special import ndtr

from underclock.app.backends import default_measuring, open_measurer
from underclock.app.measuring import surveyed
from underclock.app.planning import PlanCosts, check_goal, check_has_budget, decided, under_goal
from underclock.app.switching import switching_as_of, switching_of
from underclock.campaign.loop import CampaignRun
from underclock.campaign.progress import Tally
from underclock.campaign.recording import Recorder, record
from underclock.campaign.refining import SHARE, Refining, hottest_kernel
from underclock.campaign.survey import Campaign, Grid
from underclock.core.model.boards import FittedBoards, check_alike, fit_boards
from underclock.core.model.cost_estimate import CostEstimate
from underclock.core.planning.goal import Goal
from underclock.core.planning.latency_curve import Progress
from underclock.errors import DataError, UsageError
from underclock.hw.base import Capability
from underclock.hw.gpu_names import parse_gpu
from underclock.records import TOLERANCE, MeasurementSettings, Plan, SampleSet, Step, Strategy
from underclock.store import (
    SampleSource,
    as_record,
    by_board,
    is_merged,
    read_parts,
    read_samples,
)
from underclock.tracing.source import StepFile, StepFunction
from underclock.units import format_percent

BOARDS = 64
_SURE = 1e-9  # least deviation of a time
_FEWEST = 12  # windows that tell anything of a board


def boards_of(samples: Sequence[SampleSource]) -> tuple[SampleSet, ...]:
    """Return the samples of each board, of which a merged file has several.

    Raises:
        DataError: They cannot be read, or boards cannot be fitted together.
    """
    read: list[SampleSet] = []
    for each in samples:
        merged = isinstance(each, str | Path) and is_merged(Path(each))
        read += by_board(read_parts(Path(str(each)))) if merged else [read_samples(each)]
    check_alike(read)
    return tuple(read)


def plan_fleet(
    samples: Sequence[SampleSource],
    goal: Goal | None = None,
    *,
    boards: int = BOARDS,
    latency: str | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Choose clocks for boards that nobody measured, from samples of a few of their model.

    The time budget is kept on 95 % of boards at least, and intervals are those over boards.

    Args:
        samples: Samples or a samples file of each board.
        goal: What to minimise; by default energy, without being any slower.
        boards: How many there are, of which the plan says how many will be late.
        latency: What changing clocks takes, as for `plan`.
        progress: As for `plan`.

    Returns:
        A plan for any board of the model; which board is not asked where it is run.

    Raises:
        UsageError: The goal has no time budget.
        DataError: The samples cannot be read, or boards cannot be fitted together.
        InfeasibleError: No choice meets the time budget.
    """
    goal = goal or Goal()
    if boards < 1:
        raise UsageError(f"a fleet of {boards} boards is none", hint="--boards 64")
    check_has_budget(goal)
    read = boards_of(samples)
    check_goal(read[0].gpu, goal, alone=False)
    fitted = fit_boards(read)
    pooled = fitted.pooled
    any_board = msgspec.structs.replace(pooled.gpu, uuid=None)
    pooled = msgspec.structs.replace(pooled, gpu=any_board, provenance=None)
    estimated = fitted.any_board()
    switching = None if latency is None else switching_of(latency, pooled, goal, samples[0])
    made = decided(pooled, goal, PlanCosts.of(estimated), switching, progress)
    told = _told(made, estimated, fitted, boards)
    return msgspec.structs.replace(made, warnings=(*told, *made.warnings))


def _told(
    plan: Plan, estimated: CostEstimate, fitted: FittedBoards, boards: int
) -> tuple[str, ...]:
    """Say what a fleet's plan is of, what it saves on each board measured, and what is left."""
    table, cost = estimated.table, plan.headline.cost
    count = len(fitted.sample_sets)
    of = f"for any {plan.gpu.name}, from samples of {count} of them"
    if count == 1:
        of += (
            ": one board does not tell how boards differ, so that is taken to be as usual; samples "
            "of three more would tell"
        )
    if cost is None or estimated.boards is None:
        return (of,)
    choice = np.array([table.settings.index(each) for each in plan.launch_clocks])
    here = estimated.predicted_schedule(choice)
    # What stalls add is in the plan's cost, not in what boards make of kernels.
    off = np.array([cost.time_change - here.time_change, cost.energy_change - here.energy_change])
    away = estimated.boards.away(table, choice)
    energy = cost.energy_change + float(away[:, 1].mean())
    time = cost.time_change + away[:, 0]
    # Errors of the fit count too.
    spread = max(estimated.known_change(choice).time_spread, _SURE)
    late = float(ndtr((time - (plan.max_slowdown or 0.0) - TOLERANCE) / spread).mean())
    words = (
        f"{of}: over {boards} boards {format_percent(energy)} energy at "
        f"{format_percent(float(time.mean()))} time, {late * boards:.0f} of them later than asked"
    )
    each = []
    for number in range(count):
        own = fitted.board(number).predicted_schedule(choice)
        name = fitted.sample_sets[number].gpu.uuid or f"board {number + 1}"
        each.append(
            f"{name} {format_percent(own.energy_change + off[1])} at "
            f"{format_percent(own.time_change + off[0])}"
        )
    return words, f"on the boards measured: {'; '.join(each)}"


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
    measuring = measuring or default_measuring(gpu, adaptive=True)
    fleet = fit_boards(others)
    # Of what any board takes windows for, the kernels are what is known here.
    least = min(len(board.windows) for board in others)
    campaign = Campaign(grid=Grid.ADAPTIVE, max_samples=max(_FEWEST, round(SHARE * least)))
    with open_measurer(gpu, measuring=measuring, seed=seed, step=step, run=run) as measurer:
        # What is measured is costs at clocks; the limit to plan for is applied to those.
        plan.check_gpu(measurer.info(), plan.gpu.power_limit_w)
        header, _ = surveyed(
            measurer, measurer.step or step, campaign, gpu=gpu, measuring=measuring, seed=seed
        )
        sentence = f"measured on {gpu} in what it differs from other boards only: refine plans it"
        header = msgspec.structs.replace(header, warnings=(*header.warnings, sentence))
        check_alike((*others, msgspec.structs.replace(header, windows=others[0].in_situ)))

        def fit(own: SampleSet) -> CostEstimate:
            return fit_boards((own, *others), fleet).board(0)

        def take(recorder: Recorder) -> None:
            hottest = hottest_kernel(others[0])
            policy = Refining(recorder, goal, hottest, fit)
            CampaignRun(recorder, policy, campaign, progress or (lambda _tally: None)).run()

        own = record(measurer, path, header, take)
    costs = PlanCosts.of(fit(own))
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
