"""``underclock run``."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from underclock.app.options import FRACTION, Command, json_option, more_option
from underclock.app.output import INCONCLUSIVE, NOT_KEPT, print_json, print_table, say
from underclock.errors import NotPermittedError, UsageError
from underclock.hw.interrupts import BY_SIGNAL, InterruptedBySignal

if TYPE_CHECKING:
    from underclock.records import Step
    from underclock.runtime.holding.run import Ran

_LIVE_S = 5.0


@click.command(name="run", cls=Command)
@click.argument("plan", required=False)
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="GPU",
    help="Of each local rank, in their order: nvml:0 or sim:rtx3080ti. [default: the first that "
    "CUDA shows; of a job's plan, as many as it has ranks; with --observe, all]",
)
@click.option("--observe", is_flag=True, help="Without PLAN: set nothing, and count kWh.")
@click.option(
    "--max-slowdown",
    type=FRACTION,
    default=0.01,
    help="Without PLAN: time budget of the clocks that are learned. [default: 1%]",
)
@click.option("--dry-run", "dry", is_flag=True, help="Do everything but set clocks.")
@click.option(
    "--log",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A line of JSON for each step; appended to. What it says was learned is tried first.",
)
@click.option(
    "--compare",
    "arms",
    default="",
    metavar="WAYS",
    help="Let ways of choosing clocks take turns, and compare them: auto,plan,best-fixed.",
)
@more_option(
    "--guard",
    "window",
    type=int,
    metavar="STEPS",
    help="That are judged together: slower ones take the plan back; 0 never. [default: 20, without "
    "--compare]",
)
@more_option(
    "--first-rank",
    type=int,
    default=0,
    metavar="RANK",
    help="Of a job on several machines: the first of this one's.",
)
@more_option(
    "--leader",
    default="",
    metavar="HOST:PORT",
    help="Where the machine of rank 0 decides for a job on several machines; the same on all.",
)
@click.option("--live", is_flag=True, help="Say every five seconds how it goes.")
@more_option("--metrics-port", type=int, metavar="PORT", help="Where Prometheus may ask.")
@more_option("--anyway", is_flag=True, help="On another board or driver than the plan's too.")
@json_option
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND")
def command(
    *,
    plan: str | None,
    observe: bool,
    live: bool,
    as_json: bool,
    command_line: tuple[str, ...],
    **asked: Any,  # noqa: ANN401 - what a `HowToRun` has, by its names
) -> None:
    """Run a training COMMAND unchanged, and hold a plan's clocks while it trains.

    Without PLAN the clocks are learned meanwhile: auto first, then core clocks that cost no more
    time than --max-slowdown; what saves most is compared with auto on the job itself, and held.

    A job's plan is held on all ranks together, started by torchrun, say.

    A process of its own sets the clocks; they are given back however it ends.

    Ends with the command's code; where that is 0 after --compare, with 7 where the plan did not
    keep its promise, and with 8 where the run does not decide it.

    Example: underclock run -- python train.py --epochs 3
    """
    if plan is not None and not _is_plan(plan):
        command_line, plan = (plan, *command_line), None
    if (plan is None and not command_line) or (observe and plan is not None):
        raise UsageError(
            "run takes a command, or a plan and a command; with --observe a command alone",
            hint="underclock run -- python train.py",
        )
    asked |= {"live_s": _LIVE_S if live else None, "learn": plan is None and not observe}
    with on_which_to_train(asked["gpus"]) as asked["gpus"]:
        asked["step"] = _executed(command_line) if asked["learn"] else None
        train(plan, command_line, as_json=as_json, **asked)


@contextmanager
def on_which_to_train(gpus: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield GPUs that a training process can have: simulated ones are served as long as the block.

    `UsageError`: a name is wrong, or simulated GPUs are of different models.
    """
    from underclock.hw.base import parse_gpu
    from underclock.hw.nvml_calls import SIMULATOR

    names = [parse_gpu(gpu) for gpu in gpus]
    if not any(name.is_simulated for name in names):
        yield tuple(gpus)
        return
    from underclock.hw.simulated.served.server import served_gpus  # loads NumPy and SciPy

    if len({(name.kind, name.name) for name in names}) > 1:
        words = f"{' '.join(gpus)} are of different kinds, and one server has GPUs of one model"
        hint = f"name the same for each rank: --gpu {gpus[0]} --gpu {gpus[0]}"
        raise UsageError(words, hint=hint)
    with (
        tempfile.TemporaryDirectory() as folder,
        served_gpus(names[0].name, socket := Path(folder) / "gpu.sock", count=len(names)),
    ):
        before = os.environ.get(SIMULATOR)
        os.environ[SIMULATOR] = str(socket)
        try:
            yield tuple(f"nvml:{index}" for index in range(len(names)))
        finally:
            os.environ.pop(SIMULATOR)
            if before is not None:
                os.environ[SIMULATOR] = before


def train(
    plan: str | None,
    command_line: tuple[str, ...],
    *,
    as_json: bool = False,
    **asked: Any,  # noqa: ANN401
) -> None:
    """Run a command as asked, print how it went, and end with its code."""
    from underclock.runtime.holding.run import HowToRun, run

    codes: list[int] = []

    def ended(ran: "Ran") -> None:
        _show(ran, as_json=as_json)
        codes.append(_code(ran))

    how = HowToRun(tell=_tell, ended=ended, **asked)
    try:
        run(plan, command_line, how)
    except NotPermittedError as exc:
        more = "" if plan else "; without that right, --observe counts what it draws"
        raise NotPermittedError(str(exc), hint=f"{exc.hint}{more}") from exc
    except InterruptedBySignal as exc:
        if codes:  # else it never began
            sys.exit(exc.exit_code)
        raise
    sys.exit(codes[-1])


def _is_plan(word: str) -> bool:
    """Whether the first word is a plan's file, and not the command's first."""
    is_script = word.endswith(".py") or shutil.which(word) is not None
    return word.endswith(".json") or (Path(word).is_file() and not is_script)


def _executed(command_line: tuple[str, ...]) -> "Step | None":
    """Return the step that a simulated GPU executes while the command trains on the CPU."""
    from underclock.app.launching import trace_command
    from underclock.hw.nvml_calls import is_simulated, nvml_session
    from underclock.tracing.source import TrainingCommand

    with nvml_session():
        if not is_simulated():
            return None
    _tell("the GPU is simulated: the command runs twice, first until one of its steps was listed")
    return trace_command(TrainingCommand.of(command_line), assume=True, say=_tell)[0].step


def _tell(sentence: str) -> None:
    say(f"underclock: {sentence}", err=True)


def _show(ran: "Ran", *, as_json: bool) -> None:
    """Print how a run went; a failure to print leaves the exit code as it is."""
    from underclock.report import run_table

    if ran.code < 0:
        _tell(f"the command was ended by {signal.Signals(-ran.code).name}")
    try:
        if as_json:
            print_json(ran)
        else:
            print_table(run_table(ran.summary))
    except (OSError, SystemExit) as exc:  # which rich raises where the reader has gone
        # At exit Python must not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _tell(f"how the run went cannot be printed: {exc}")
    if not as_json:
        for line in ran.undone:
            say(line, err=True)
    _tell(ran.line)


def _code(ran: "Ran") -> int:
    from underclock.records import Verdict
    from underclock.records.runs import LEARNED

    if ran.code:
        return ran.code if ran.code > 0 else BY_SIGNAL - ran.code
    if ran.summary.run is None or ran.summary.run.arms in {"", LEARNED}:
        return 0
    verdicts = {arm.verdict for arm in ran.summary.arms}  # of arms without a promise: empty words
    if Verdict.NOT_KEPT in verdicts:
        return NOT_KEPT
    return 0 if verdicts and verdicts <= {Verdict.KEPT, ""} else INCONCLUSIVE
