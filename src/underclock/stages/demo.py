"""demo: the whole way on the simulated GPU, from GPT-3 XL to a page."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from underclock.campaign.progress import Tally
from underclock.core.planning.goal import Goal
from underclock.errors import UnderclockError, UsageError
from underclock.records import Plan, Step, Validation
from underclock.stages.measure import measure
from underclock.stages.plan import plan
from underclock.stages.report import write_report
from underclock.stages.validate import validate
from underclock.store import check_output, read_document, write_document
from underclock.tracing.trace import trace

_GPU = "sim:rtx3080ti"
_FILES = ("step.json", "samples.db", "plan.json", "validation.json", "report.html")


@dataclass(frozen=True, slots=True)
class Demo:
    """What the demo made."""

    plan: Plan
    validation: Validation
    page: Path


def run_demo(
    folder: Path,
    *,
    max_slowdown: float = 0.01,
    seed: int = 0,
    force: bool = False,
    progress: Callable[[Tally], None] | None = None,
) -> Demo:
    """Trace, measure, plan, validate and report into a folder.

    A demo that was interrupted goes on: what it had measured is kept.

    Args:
        folder: Made if it is missing.
        max_slowdown: Time budget, as a fraction above auto.
        seed: Of the simulated GPU's noise.
        force: Whether files of an earlier demo may be replaced.
        progress: Told of every sample.

    Raises:
        UsageError: The folder holds an earlier demo, or what is none, or cannot be written.
        InfeasibleError: No choice meets the time budget.
    """
    try:
        goal = Goal(max_slowdown=max_slowdown)
        folder.mkdir(parents=True, exist_ok=True)
    except ValueError as exc:
        raise UsageError(str(exc)) from exc
    except OSError as exc:
        raise UsageError(f"cannot make {folder}: {exc.strerror}") from exc
    step_file, samples, plan_file, validation_file, page = (folder / name for name in _FILES)
    step = trace("gpt3-xl")
    goes_on = not force and not page.exists() and _holds(step_file, step)
    for path in (step_file, samples, plan_file, validation_file, page):
        check_output(path, force=force or goes_on, over_samples=path == samples)
    if not goes_on:
        samples.unlink(missing_ok=True)
        write_document(step_file, step, force=force)
    force |= goes_on
    sample_set = measure(step, gpu=_GPU, to=samples, seed=seed, progress=progress)
    made = plan(sample_set, goal, latency="known")
    write_document(plan_file, made, force=force)
    validated = validate(made, gpu=_GPU, seed=seed, progress=progress)
    write_document(validation_file, validated, force=force)
    write_report(made, to=page, validation=validated, force=force)
    return Demo(made, validated, page)


def _holds(path: Path, step: Step) -> bool:
    """Return whether a demo began to fill this folder."""
    try:
        return read_document(path, Step) == step
    except UnderclockError:
        return False
