"""The command group, and the one place where an error becomes a sentence and an exit code."""

import ctypes
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import click

from underclock.app.output import print_anywhere, print_json, say
from underclock.errors import StuckError, UnderclockError, UsageError
from underclock.hw.interrupts import INTERRUPTED, InterruptedBySignal, interruptible
from underclock.units import name_hint

GONE_COMMANDS: Final[dict[str, str]] = {
    "breakdown": "`underclock plan` shows where a step's energy goes at auto",
    "fit": "`underclock plan` fits its samples by itself, and warns of kernels it cannot describe",
    "serve": "zeusd sets clocks for users without root, whom its group or a token lets in "
    "(docs/operators.md)",
    "fleet": "boards differ by a few per cent: `underclock measure --near PLAN` and `plan` make a "
    "plan each board's own, and `merge` pools samples of several",
    "refine": "`underclock measure --near PLAN` measures near its clocks here, and `plan` plans",
    "predict": "`underclock measure` takes samples at other clocks, and `underclock plan` says "
    "what they save",
    "calibrate": "`python studies/calibrate.py` in a clone makes a simulated GPU of a sweep",
    "check": "`python studies/check.py` in a clone says what promises are worth",
    "score": "`python studies/score.py` in a clone says what a plan costs on a full table",
    "compare": "`python studies/compare.py` in a clone compares policies",
    "export": (
        "`underclock report plan.json -o plan.trace.json` writes a Chrome trace, `to_pandas()` of "
        "samples and plans a table"
    ),
    "watch": "`nvidia-smi --query-gpu=clocks.sm,power.draw --format=csv --loop-ms=20` logs clocks",
}
"""By the command's name."""

GONE_OPTIONS: Final[dict[str, str]] = {
    "underclock measure --clocks": "`--grid steer` steers clocks; they are held where that is "
    "allowed",
    "underclock measure --warmup": "`--window 0.5s,1s` warms each kernel for 0.5 s, and measures "
    "for 1 s",
    "underclock plan --accounting": "`underclock.plan(..., isolated=True)` in Python adds up "
    "kernels measured alone",
    "underclock plan --min-dwell": "`--latency` with the duration keeps clocks for as long",
    "underclock plan --power-limit": "set the limit with `nvidia-smi -pl`, then measure and plan",
    "underclock plan --raw": "`underclock.plan(..., raw=True)` in Python takes samples for the "
    "truth",
    "underclock plan --aggregate": '`underclock.Goal(aggregate="local")` in Python lets each '
    "kernel keep the budget",
    "underclock run --arms": "`--compare auto,plan` lets ways of choosing clocks take turns",
    "underclock run --node-power": "ranks keep the power limits they have; nvidia-smi -pl sets any",
    "underclock transfer --own": "those samples go next to the plan that -o names",
    "underclock validate --tolerance": "`underclock.validate(..., tolerance=0.001)` in Python",
}
"""By the command that had the option, as it was typed, and the option."""


_COMMANDS = {
    "tune": "Find clocks for your training command: an answer and a page.",
    "trace": "List the kernels of a training step.",
    "measure": "Measure kernels at the clock pairs that decide a plan.",
    "job": "Describe a job of many GPUs, for a plan.",
    "merge": "Put samples of several GPUs into one file.",
    "plan": "Choose clocks for every kernel.",
    "plan-server": "Choose clocks for a server's steps, by phase and batch.",
    "transfer": "Plan a step that was not measured, from samples of another.",
    "run": "Train while clocks are held or learned, and given back at the end.",
    "saved": "Say what runs under a plan saved: kWh, money, CO2e.",
    "validate": "Measure a plan again, against auto clocks.",
    "apply": "Hold a plan's best fixed clocks until Ctrl-C.",
    "restore": "Undo what a killed run left set.",
    "latency": "Measure how long a GPU takes to change its clocks.",
    "report": "Write a plan as one offline page.",
    "doctor": "Show what this machine and the simulator can do.",
    "simulate": "Serve simulated GPUs to every process here.",
    "demo": "Find clocks for an example, on a simulated GPU.",
    "paper": "Run the paper's study on the simulated GPU, next to its numbers.",
}

_SERVICES = {"merge", "plan-server", "transfer", "validate", "apply", "restore", "simulate"}
"""Commands that stand together in one file; the rest have files of their own."""

_FIRST = ("demo", "tune", "run", "saved", "plan", "measure", "trace", "report", "doctor")
"""What most people need, in the order of the help."""

# Of glibc's mallopt: M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
_KEPT_MEMORY = {-3: 1 << 30, -1: 2**31 - 1}  # bytes
_RESUMED = {"measure", "demo", "tune"}  # their samples are on disk as soon as they are taken
_CODES = (
    "0 done, 2 ask differently, 3 the GPU refused, 4 a file is unusable, 5 the numbers cannot be "
    "trusted, 6 no clocks, or no schedule under the latency, meet the budget, 7 a plan did not "
    "keep its promise, 8 too few runs to decide whether it did, 129, 130 or 143 interrupted "
    "(SIGHUP, SIGINT, SIGTERM)"
)


class _LazyGroup(click.Group):
    """Imports a command when it is used, so that --help stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None  # resolve_command says it better
        home, name = f"app.{cmd_name}", "command"
        if cmd_name == "paper":
            home = "paper.command"
        elif cmd_name in _SERVICES:
            home, name = "app.services", cmd_name.replace("-", "_")
        module = importlib.import_module(f"underclock.{home}")
        return getattr(module, name)  # type: ignore[no-any-return]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse a command that is gone, or say which was probably meant."""
        if args[0] in GONE_COMMANDS and not ctx.resilient_parsing:
            raise UsageError(f"{args[0]} is gone", hint=GONE_COMMANDS[args[0]])
        if not (args[0] in _COMMANDS or args[0].startswith("-") or ctx.resilient_parsing):
            raise UsageError(f"there is no command {args[0]!r}", hint=name_hint(args[0], _COMMANDS))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        more = [name for name in _COMMANDS if name not in _FIRST]
        for heading, names in (("Commands", _FIRST), ("More", more)):
            with formatter.section(heading):
                formatter.write_dl([(name, _COMMANDS[name]) for name in names])


@click.group(
    cls=_LazyGroup,
    epilog=f"Exit codes: {_CODES}.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(None, "-V", "--version", package_name="underclock")
def cli() -> None:
    """Find the GPU clocks at which a training step wastes no energy, kernel by kernel."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with a code where something is wrong."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    # Fits are of many small matrices, over which a library's threads wait for each other: they took
    # the demo three times the processor's time. Read when NumPy is loaded, which commands do.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Their arrays come and go. Memory that glibc gives back each time has to be mapped again, page
    # by page: a sixth of the demo's time.
    for parameter, most in _KEPT_MEMORY.items():
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(parameter, most)
    print_anywhere()
    stdout = sys.stdout
    try:
        with interruptible():
            cli.main(args=given, prog_name="underclock", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as exc:
        exc.show()
        sys.exit(exc.exit_code)
    except click.ClickException as exc:
        context: click.Context | None = getattr(exc, "ctx", None)
        text = exc.format_message().removesuffix(".")  # click begins with a capital
        sentence = text[:1].lower() + text[1:]
        sys.exit(_said(given, sentence, _hint(exc, context), exc.exit_code))
    except UnderclockError as exc:
        notes = getattr(exc, "__notes__", ())
        code = _said(given, str(exc), exc.hint, exc.exit_code, notes=notes)
        if isinstance(exc, StuckError):
            sys.stdout.flush()
            os._exit(code)  # to end as usual is to wait for the GPU
        sys.exit(code)
    except (click.Abort, KeyboardInterrupt, InterruptedBySignal) as exc:
        words = "; ".join(("interrupted", *getattr(exc, "__notes__", ())))
        hint = ""
        if given and given[0] in _RESUMED:
            hint = "the same command goes on where it stopped: no sample is lost"
        sys.exit(_said(given, words, hint, getattr(exc, "exit_code", INTERRUPTED)))
    except (BrokenPipeError, SystemExit) as exc:
        # click wraps stdout whose pipe broke, and ends with 1; rich ends with 1 as it handles that.
        broke = sys.stdout is not stdout or isinstance(exc.__context__, BrokenPipeError)
        if isinstance(exc, SystemExit) and not broke:
            raise
        # The reader left; keep Python from complaining when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _said(
    given: Sequence[str], error: str, hint: str, code: int, *, notes: Sequence[str] = ()
) -> int:
    """Say what went wrong, for a person on stderr or as an object on stdout; return the code."""
    if "--json" in given:
        print_json({"error": "; ".join((error, *notes)), "hint": hint, "exit_code": code})
        return code
    say(f"underclock: {error}", err=True)
    if hint:
        say(f"  hint: {hint}", err=True)
    for note in notes:
        say(f"underclock: {note}", err=True)
    return code


def _hint(exc: click.ClickException, context: click.Context | None) -> str:
    """Say what may be written where an option is missing or unknown, else where help is."""
    if context is None:
        return ""
    names = () if not isinstance(exc, click.MissingParameter) else getattr(exc.param, "opts", ())
    if "--gpu" in names:
        from underclock.gpus.models import model_names

        return f"sim:NAME ({', '.join(model_names())}), replay:TABLE.csv or nvml:0"
    if isinstance(exc, click.NoSuchOption):
        if sentence := GONE_OPTIONS.get(f"{context.command_path} {exc.option_name}"):
            return sentence
        from underclock.workloads import SIZES

        size = exc.option_name.lstrip("-").replace("-", "_")
        if context.command.name == "trace" and size in SIZES:
            return f"sizes are written --size {size}=8"
    return f"{context.command_path} --help"
