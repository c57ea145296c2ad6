"""A plan for a step that was not measured, from samples of another one."""

import math
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from underclock.app.backends import default_measuring, open_measurer
from underclock.app.measuring import surveyed
from underclock.app.planning import KNOWN, Switching, costs_of, decided, switching_of
from underclock.campaign.grid import Campaign, Grid
from underclock.campaign.loop import CampaignRun, Listed
from underclock.campaign.recording import Recorder, record
from underclock.core.planning.best_choice import Goal
from underclock.core.step.cost_table import CostTable
from underclock.core.step.power_capped_step import step_cost
from underclock.core.transfer import Carried, carried
from underclock.errors import DataError, UsageError
from underclock.hw.base import Capability, parse_gpu
from underclock.records import AUTO, Clocks, Kernel, Plan, SampleSet, Step
from underclock.store import SampleSource, as_record, kind_of, read_samples
from underclock.tracing.source import StepFile, StepFunction, as_step

_GONE = "name the samples that the plan was made of: --from samples.db"

_SURELY_ALONE = 0.95  # of the limit: power that is expected is off by some per cent


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm:
    """Kernels to measure of a step that a plan was carried over to."""

    kernels: int
    """How many: those that the promise hangs on most."""
    gpu: str
    """``sim:NAME`` or ``nvml:INDEX``: the one that the other step's samples are of."""
    to: str | Path
    """Samples file, made or continued."""
    seed: int = 0
    """Of a simulated GPU's noise."""
    run: StepFunction | StepFile | None = None
    """The step's function, or where it may be found."""

    def __post_init__(self) -> None:
        """Refuse to confirm nothing, or on what cannot run kernels."""
        if self.kernels < 1:
            hint = "name how many of them to measure, as --confirm 5, or leave it away"
            raise UsageError(f"confirming {self.kernels} kernels confirms nothing", hint=hint)
        parse_gpu(self.gpu).need(Capability.RUN)

    def measured(self, step: Step, found: Carried, made: Plan) -> SampleSet:
        """Measure the kernels that a promise hangs on most, at auto and at the plan's clocks."""
        table = found.estimated.table
        clocks = [made.kernels[kernel.name].clocks for kernel in step.kernels]
        doubts = found.estimated.hangs_on(np.array([table.settings.index(one) for one in clocks]))
        chosen = np.argsort(-doubts, kind="stable")[: self.kernels].tolist()
        wanted: dict[Clocks, list[Kernel]] = {AUTO: [step.kernels[k] for k in chosen]}
        for k in chosen:
            at = _held_alone(found, k, clocks[k])
            if not at.is_auto:
                wanted.setdefault(at, []).append(step.kernels[k])
        campaign = Campaign(grid=Grid.ADAPTIVE, in_situ=False)
        measuring = default_measuring(self.gpu, adaptive=True)
        gpu, seed = self.gpu, self.seed
        with open_measurer(
            gpu, measuring=measuring, seed=seed, step=step, run=self.run
        ) as measurer:
            ran = measurer.step or step
            header, _ = surveyed(measurer, ran, campaign, gpu=gpu, measuring=measuring, seed=seed)
            if header.gpu != found.sample_set.gpu:
                raise DataError(
                    f"the samples are of {found.sample_set.gpu.name}, and {self.gpu} is another "
                    f"GPU, board, driver or limit: {header.gpu.name}",
                    hint="clocks carry over on one GPU: confirm on the one that was measured",
                )
            header = msgspec.structs.replace(header, expected_samples=None)

            def take(recorder: Recorder) -> None:
                policy = Listed(recorder, list(wanted.items()), campaign)
                CampaignRun(recorder, policy, campaign, lambda _tally: None).run()

            own = record(measurer, Path(self.to), header, take)
        kernels = tuple(step.kernels[k] for k in sorted(chosen))
        names = {kernel.name for kernel in kernels}
        windows = tuple(window for window in own.windows if window.kernel in names)
        of_these = Step(name=step.name, kernels=kernels)
        return msgspec.structs.replace(own, step=of_these, windows=windows)


def _held_alone(found: Carried, kernel: int, planned: Clocks) -> Clocks:
    """Return the clocks nearest to those planned that a kernel alone is expected to hold.

    Where the power limit lowers the clock, a window says nothing of the clock that was asked for.
    """
    table, limit_w = found.estimated.table, found.sample_set.gpu.power_limit_w or math.inf
    power_w = table.energy_j[kernel] / table.time_s[kernel]
    slower = [
        clocks
        for clocks, drawn_w in zip(table.settings, power_w, strict=True)
        if clocks.core_mhz is not None
        and clocks.mem_mhz == planned.mem_mhz
        and clocks.core_mhz <= (planned.core_mhz or clocks.core_mhz)
        and drawn_w < _SURELY_ALONE * limit_w
    ]
    return max(slower, key=lambda clocks: clocks.core_mhz or 0, default=planned)


def transfer(
    plan: Plan | SampleSource,
    step: Step | str | Path,
    *,
    samples: SampleSource | None = None,
    goal: Goal | None = None,
    latency: str | None = None,
    anew: SampleSource | None = None,
    confirm: Confirm | None = None,
) -> Plan:
    """Plan a step that was not measured, on samples of another step on the same GPU.

    Args:
        plan: A plan of the step that was measured, or its file; or that step's samples.
        step: The step to plan for: a step, its file, or a named workload.
        samples: Those that the plan was made of; a plan does not hold them.
        goal: What to minimise; by default what the plan did.
        latency: What changing clocks takes, as of `plan`; by default as the plan took it, else
            what is known.
        anew: Samples of the step itself, where there are any: the plan's loss
            against a plan made of them is reported.
        confirm: Kernels of the step to measure after all, and where.

    Raises:
        UsageError: An impossible goal, or latencies that are not known; a file of other samples.
        DataError: The samples are gone, of another step or GPU, or the steps share no kernel.
        InfeasibleError: No choice meets the time budget.
    """
    given, source, sample_set = _given(plan, samples)
    to = as_step(step)
    if to is None:
        raise DataError("there is no step to plan for", hint="`underclock trace` makes one")
    wanted = goal or (Goal() if given is None else Goal.of(given))
    found = carried(sample_set, to)
    switching = None
    if latency is not None or given is None:
        switching = switching_of(latency or KNOWN, found.sample_set, wanted, source)
    elif given.schedule is not None:
        switching = Switching(
            latencies=given.schedule.latencies,
            curve=False,
            wording=given.schedule.latency,
            range_s=given.latency_range_s,
        )
    risk = found.estimated
    made = decided(found.sample_set, wanted, risk.table, risk, switching)
    if confirm is not None:
        found = carried(sample_set, to, confirmed=confirm.measured(to, found, made))
        risk = found.estimated
        made = decided(found.sample_set, wanted, risk.table, risk, switching)
    record = found.matches
    if anew is not None:
        own = read_samples(anew)
        if (unlike := own.unlike(found.sample_set)) is not None:
            noun, theirs, ours = unlike
            raise DataError(
                f"the samples to plan anew on are of other {noun}: {theirs}, not {ours}",
                hint="measure the step that the plan is for, on the GPU whose samples it rests on",
            )
        table, sure = costs_of(own, None, raw=None, isolated=False)
        best = decided(own, wanted, table, sure, switching)
        (time_s, energy_j), (best_s, best_j) = (costed(p, table) for p in (made, best))
        record = msgspec.structs.replace(
            record, regret_time=time_s / best_s - 1.0, regret_energy=energy_j / best_j - 1.0
        )
    return msgspec.structs.replace(made, carried=record)


def _given(
    plan: Plan | SampleSource, samples: SampleSource | None
) -> tuple[Plan | None, SampleSource, SampleSet]:
    """Return the plan, where one was given, and the samples to stand on, as given and read."""
    if not (
        isinstance(plan, Plan) or (isinstance(plan, str | Path) and kind_of(Path(plan)) == "plan")
    ):
        if samples is not None:
            raise DataError(
                "samples are given twice: as the first, and as those of a plan",
                hint="give a plan and its samples, or samples alone",
            )
        return None, plan, read_samples(plan)
    record = as_record(plan, Plan)
    if samples is None:
        raise DataError(
            f"the plan of {record.workload} does not hold the samples it was made of", hint=_GONE
        )
    if isinstance(samples, str | Path) and not Path(samples).exists():
        raise DataError(f"the samples of the plan are gone: no file {samples}", hint=_GONE)
    sample_set = read_samples(samples)
    record.check_gpu(sample_set.gpu)
    if record.step.fingerprint != sample_set.step.fingerprint:
        raise DataError(
            f"the plan is of another step than the samples: {record.workload} and "
            f"{sample_set.workload}, whose kernels differ",
            hint=_GONE,
        )
    return record, samples, sample_set


def costed(plan: Plan, table: CostTable) -> tuple[float, float]:
    """Return the time in s and energy in J that a plan's clocks take on a table of a step."""
    clocks = plan.launch_clocks
    place = {each: s for s, each in enumerate(table.settings)}
    missing = [each for each in clocks if each not in place]
    if missing:
        hint = "measure both steps at the same clock pairs"
        raise DataError(f"the step's own samples know nothing of {missing[0]}", hint=hint)
    cost = step_cost(table, np.array([place[each] for each in clocks]))
    return cost.time_s, cost.energy_j
