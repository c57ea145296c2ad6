"""The command group, and the one place where an error becomes a sentence and an exit code."""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType

import click

from underclock.cli.terminal import say
from underclock.errors import UnderclockError
from underclock.hw.interrupts import INTERRUPTS

_COMMANDS = {
    "trace": "List the kernels of a training step.",
    "measure": "Measure kernels at the clock pairs that decide a plan.",
    "breakdown": "Show where a step's energy goes at auto clocks.",
    "fit": "Fit one model of a GPU to its samples.",
    "watch": "Log what a GPU's clocks do, kernel by kernel.",
    "predict": "Say what clocks would save, from auto clocks only.",
    "plan": "Choose clocks for every kernel.",
    "score": "Cost a plan on a full table of measurements.",
    "validate": "Measure a plan again, against auto clocks.",
    "report": "Write a plan as one offline page.",
    "calibrate": "Make a simulated GPU of a measured sweep, or check one.",
    "latency": "Measure how long a GPU takes to change its clocks.",
    "doctor": "Show what this machine and the simulator can do.",
    "demo": "All of it on the simulated GPU.",
    "paper": "Run the paper's study on the simulated GPU, beside its numbers.",
}

_BY_SIGNAL = 128  # a shell reports this much more than the signal's number


class _InterruptedError(BaseException):
    """A signal asks the command to end; raised wherever it is, so that every ``with`` is left."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = _BY_SIGNAL + number


class _LazyGroup(click.Group):
    """Imports a command when it is used, so that --help stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"underclock.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=_LazyGroup,
    epilog="Exit codes: 0 done, 2 ask differently, 3 the GPU refused, 4 a file is unusable, "
    "5 the numbers cannot be trusted, 6 no clocks meet the budget, 7 a plan did not keep its "
    "promise, 129, 130 or 143 interrupted (SIGHUP, SIGINT, SIGTERM).",
)
@click.version_option(package_name="underclock")
def cli() -> None:
    """Find the GPU clocks at which a training step wastes no energy, kernel by kernel."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with a code where something is wrong.

    Args:
        arguments: Without the program's name; by default the process's own.
    """
    try:
        with _interruptible():
            cli.main(args=arguments, prog_name="underclock", standalone_mode=False)
    except click.ClickException as exc:
        exc.show()
        sys.exit(exc.exit_code)
    except UnderclockError as exc:
        say(f"underclock: {exc}", err=True)
        if exc.hint:
            say(f"  hint: {exc.hint}", err=True)
        for note in getattr(exc, "__notes__", ()):
            say(f"underclock: {note}", err=True)
        sys.exit(exc.exit_code)
    except (click.Abort, KeyboardInterrupt, _InterruptedError) as exc:
        words = ("interrupted", *getattr(exc, "__notes__", ()))
        say(f"underclock: {'; '.join(words)}", err=True)
        sys.exit(getattr(exc, "exit_code", _BY_SIGNAL + signal.SIGINT))
    except BrokenPipeError:
        # The reader left; keep Python from complaining when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into an exception for the length of a command.

    What the process was told to ignore, as by ``nohup``, stays ignored. Python takes signals in
    its main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise _InterruptedError(number)

    with ExitStack() as stack:
        for number in INTERRUPTS:
            handler = signal.getsignal(number)
            if handler is not None and handler != signal.SIG_IGN:
                stack.callback(signal.signal, number, handler)
                signal.signal(number, interrupt)
        yield
