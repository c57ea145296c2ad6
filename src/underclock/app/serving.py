"""plan-server: samples of several of its steps in, a table of clocks out."""

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

import underclock
from underclock.app.planning import costs_of
from underclock.core.model.costs import TWO_SIDED
from underclock.core.planning.serving import ServedStep, ServingBudget, served
from underclock.core.step.power_cap import coload_moves_clock
from underclock.core.step.whole_step import as_one, is_only_whole
from underclock.errors import DataError
from underclock.records import ALONE, AUTO, SERVING, Clocks, Pass, SampleSet
from underclock.records.serving import Basis, ServingCost, ServingPlan
from underclock.store import SampleSource, read_samples

_SIZES = re.compile(r"-b(?P<batch>\d+)-c(?P<context>\d+)(?P<thousands>k?)(-t(?P<tokens>\d+))?")
_PHASE = re.compile("|".join(SERVING))
_THOUSAND = 1024
_LEAST = 0.01  # of a cost, where its interval would reach below


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A step of a family, its costs not known yet: its samples, and where they are from."""

    file: str
    samples: SampleSet
    model: str
    step: ServedStep


def plan_serving(
    family: Sequence[SampleSource], budget: ServingBudget | None = None
) -> ServingPlan:
    """Choose clocks for the steps of a server.

    Args:
        family: Samples of steps of one model on one kind of GPU, each at a batch and context of its
            own; a folder stands for the samples files in it.
        budget: How long steps may take; by default no longer than at auto.

    Raises:
        DataError: Samples of a step are no server's, or do not say of which step they are; one step
            is there twice; or steps are of unlike models or GPUs.
    """
    budget = budget or ServingBudget(max_slowdown=0.0)
    sources: list[SampleSource] = []
    for source in family:
        if not (isinstance(source, str | Path) and Path(source).is_dir()):
            sources.append(source)
        elif inside := sorted(Path(source).glob("*.db")):
            sources.extend(inside)
        else:
            raise DataError(f"{source} has no samples files (*.db)", hint="measure its steps")
    members = [_member(source, place) for place, source in enumerate(sources)]
    _check_alike(members)
    every = [member.samples for member in members]
    steps = [replace(member.step, costs=step_costs(member.samples)) for member in members]
    buckets, fixed = served(steps, budget)
    first = every[0]
    idle_w = [
        window.power_w
        for samples in every
        for window in samples.windows
        if not window.kernel and not window.mix.launches and not window.mix.hot
    ]
    notes = [warning for samples in every for warning in samples.warnings]
    boards = {samples.gpu.uuid for samples in every}
    if len(boards) > 1:
        notes.append(f"steps were measured on {len(boards)} boards, which differ in power")
    return ServingPlan(
        evidence=first.evidence,
        gpu=first.gpu,
        workload=members[0].model,
        max_slowdown=budget.max_slowdown,
        tpot_s=budget.tpot_s,
        ttft_s=budget.ttft_s,
        quantile=0.5 if budget.tail is None else 0.99,
        fixed=fixed,
        idle_w=statistics.median(idle_w) if idle_w else None,
        buckets=buckets,
        version=underclock.__version__,
        warnings=tuple(dict.fromkeys(notes)),
    )


def _member(source: SampleSource, place: int) -> _Member:
    """Read samples of a step, and say which step of a server it is.

    Its phase is that of its kernels, or else in its name, and so are its sizes, as `trace` names
    the steps of a server: ``llama3-8b-decode-b8-c1024``.
    """
    file = str(source) if isinstance(source, str | Path) else f"samples {place + 1}"
    samples = read_samples(source)
    name = samples.workload
    passes = {kernel.pass_ for kernel in samples.kernels}
    phases = passes & set(SERVING) or {Pass(each) for each in _PHASE.findall(name)[-1:]}
    if passes & {Pass.BACKWARD, Pass.OPTIMIZER} or not phases:
        hint = "name the step prefill, decode or mixed; `underclock plan` plans a training step"
        raise DataError(f"{name} in {file} is no step of a server", hint=hint)
    sizes = _SIZES.search(name)
    phase = phases.pop() if len(phases) == 1 else Pass.MIXED
    if sizes is None or (phase is Pass.MIXED and sizes["tokens"] is None):
        raise DataError(
            f"{name} in {file} does not say its batch and context"
            + (", and how many tokens it has" if phase is Pass.MIXED else ""),
            hint=f"name the step such as serve-{phase}-b8-c1024"
            + ("-t520" if phase is Pass.MIXED else ""),
        )
    batch = int(sizes["batch"])
    context = int(sizes["context"]) * (_THOUSAND if sizes["thousands"] else 1)
    made = batch * context if phase is Pass.PREFILL else batch
    model = _PHASE.sub("", name[: sizes.start()]).strip("-") or "server"
    tokens = int(sizes["tokens"] or made)
    step = ServedStep(phase=phase, batch=batch, context=context, tokens=tokens, costs=())
    return _Member(file=file, samples=samples, model=model, step=step)


def _check_alike(members: Sequence[_Member]) -> None:
    first = members[0]
    places: dict[ServedStep, _Member] = {}
    for member in members:
        mine, its, step = first.samples, member.samples, replace(member.step, tokens=0)
        for noun, value, other in (
            ("models", first.model, member.model),
            ("GPUs", mine.gpu.name, its.gpu.name),
            ("power limits", mine.gpu.power_limit_w, its.gpu.power_limit_w),
            ("kinds of evidence", mine.evidence, its.evidence),
        ):
            if value != other:
                raise DataError(
                    f"{first.file} and {member.file} are of unlike {noun}: {value} and {other}",
                    hint="make a table of each",
                )
        if twin := places.get(step):
            raise DataError(
                f"{twin.file} and {member.file} are both of {step.phase} at batch {step.batch}, "
                f"context {step.context}",
                hint="leave one of them away"
                if its.step.fingerprint == twin.samples.step.fingerprint
                else "they differ in kernels: a step whose shapes change within its batch and "
                "context has no one cost; trace it at the greatest, padded",
            )
        places[step] = member


def step_costs(samples: SampleSet) -> tuple[ServingCost, ...]:
    """Return what a step costs at auto and at every clock that is known, one clock for all of it.

    Whole steps tell it, where they were steered; else the kernels that it is made of do.
    """
    steered = any(w.is_step and w.kernel_s and coload_moves_clock(w.mix) for w in samples.windows)
    if steered or is_only_whole(samples):
        windows = tuple(w for w in samples.windows if not w.kernel)
        samples = as_one(msgspec.structs.replace(samples, windows=windows))
    table, risk = costs_of(samples, None, raw=None, isolated=False)
    if table.power_cap is None:
        raise DataError(
            f"{samples.workload} never ran whole at auto, so its time is unknown",
            hint="measure it on a GPU, or a simulated one",
        )
    auto: list[float] = []  # time and energy, each with its error
    for of in ([w.time_s for w in samples.in_situ], [w.energy_j for w in samples.in_situ]):
        error = TWO_SIDED * statistics.stdev(of) / math.sqrt(len(of)) if len(of) > 1 else 0.0
        auto += [math.fsum(of) / len(of), error]
    found = [_cost(AUTO, Basis.MEASURED, *auto)]
    for place, clocks in enumerate(table.settings):
        if place == table.baseline or not np.isfinite(table.time_s[:, place]).all():
            continue
        ran = {w.kernel for w in samples.windows if w.mix == ALONE and w.asked == clocks}
        basis = Basis.MODELLED
        if "" in ran or ran >= {kernel.name for kernel in samples.kernels}:
            basis = Basis.MEASURED
        elif any(coload_moves_clock(w.mix) for w in samples.windows):
            basis = Basis.STEERED  # steering offers no clocks but those that it reached
        time_s, energy_j = (float(each[:, place].sum()) for each in (table.time_s, table.energy_j))
        error_s = error_j = 0.0
        if risk is not None:  # as the step settles under its cap
            change = risk.predicted_change(np.full(len(table.kernels), place))
            time_s = table.auto_time_s * (1.0 + change.time_change)
            energy_j = table.auto_energy_j * (1.0 + change.energy_change)
            error_s = TWO_SIDED * change.time_spread * table.auto_time_s
            error_j = TWO_SIDED * change.energy_spread * table.auto_energy_j
        found.append(_cost(clocks, basis, time_s, error_s, energy_j, error_j))
    return tuple(found)


def _cost(
    clocks: Clocks, basis: Basis, time_s: float, error_s: float, energy_j: float, error_j: float
) -> ServingCost:
    """Return a cost with its interval, whose lower end is above 0."""
    return ServingCost(
        clocks=clocks,
        time_s=time_s,
        time_interval_s=(max(time_s - error_s, _LEAST * time_s), time_s + error_s),
        energy_j=energy_j,
        energy_interval_j=(max(energy_j - error_j, _LEAST * energy_j), energy_j + error_j),
        basis=basis,
    )
