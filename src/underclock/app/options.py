"""What commands share: options, and how what is typed is parsed."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from underclock.app.output import STDOUT, Delivery, say
from underclock.errors import UsageError
from underclock.units import parse_duration, parse_fraction, parse_mhz

if TYPE_CHECKING:
    from underclock.records import Clocks
    from underclock.tracing.source import StepFile

_F = TypeVar("_F", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path, dir_okay=True)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
force_option = click.option("--force", is_flag=True, help="Replace an existing file.")
seed_option = click.option("--seed", default=0, help="Of a simulated GPU's noise.")
gpu_option = click.option(
    "--gpu", required=True, metavar="GPU", help="sim:rtx3080ti, replay:TABLE.csv or nvml:0."
)
details_option = click.option("--details", is_flag=True, help="Print what the answer rests on too.")


class MoreOption(click.Option):
    """An option that few need: help lists it after those that most people do."""


class Command(click.Command):
    """A command whose help has options of two kinds, those that few need last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both kinds, each under its heading."""
        for heading, rare in (("Options", False), ("More options", True)):
            options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
            some = [each for each in options if isinstance(each, MoreOption) == rare]
            if rows := [row for each in some if (row := each.get_help_record(ctx))]:
                with formatter.section(heading):
                    formatter.write_dl(rows)


more_option = partial(click.option, cls=MoreOption)

source_option = more_option(
    "--source",
    default="",
    metavar="FILE.py:FUNCTION",
    help="Of a real GPU's step, where its file changed or lies elsewhere.",
)


def step_file(document: Path | None, source: str, *, quiet: bool = False) -> "StepFile":
    """Return where a step's function may be taken from, and print the file's path."""
    from underclock.tracing.source import StepFile

    return StepFile(
        folder=document.parent if document else Path(),
        named=source,
        tell=lambda sentence: None if quiet else say(sentence, err=True),
    )


def _not_stdout(what: str, instead: str) -> Callable[[object, object, Path | None], Path | None]:

    def check(_context: object, _option: object, path: Path | None) -> Path | None:
        if path == STDOUT:
            raise UsageError(f"{what} cannot go to stdout", hint=f"name {instead} with -o")
        return path

    return check


def output_option(noun: str, *, required: bool, stdout: bool = True) -> Callable[[_F], _F]:
    """Return the ``-o`` option; ``-o -`` may send it to stdout unless that is ruled out."""
    return click.option(
        "-o",
        "--output",
        type=_FILE,
        required=required,
        metavar="FILE",
        callback=None if stdout else _not_stdout(f"the {noun}", "a file"),
        help=f"Where the {noun} go{'' if noun.endswith('s') else 'es'}"
        f"{'; - is stdout' if stdout else ''}.",
    )


def delivered(noun: str = "", *, required: bool = False) -> Callable[[_F], _F]:
    """Ask where an answer goes, to a file if it has a noun; it is a `Delivery` named ``to``."""

    def add(command: _F) -> _F:
        @wraps(command)
        def deliver(*, as_json: bool, **asked: Any) -> None:  # noqa: ANN401 - other options
            place = {each: asked.pop(each) for each in ("output", "force")} if noun else {}
            command(to=Delivery(as_json=as_json, **place), **asked)

        wrapped: Any = json_option(deliver)
        if noun:
            wrapped = output_option(noun, required=required)(force_option(wrapped))
        return cast("_F", wrapped)

    return add


def choice_option(
    name: str,
    choices: type[StrEnum],
    help_text: str,
    *,
    default: str,
    cls: type[click.Option] = click.Option,
) -> Callable[[_F], _F]:
    """Return an option that takes the value of a member of a closed set."""
    return click.option(
        name,
        cls=cls,
        type=click.Choice([each.value for each in choices]),
        default=default,
        show_default=True,
        help=help_text,
    )


def folder_option(help_text: str, default: Path) -> Callable[[_F], _F]:
    """Return the ``-o`` option of a command that leaves several files."""
    return click.option(
        "-o",
        "--output",
        type=_FILE,
        default=default,
        show_default=True,
        metavar="FOLDER",
        callback=_not_stdout("several files", "a folder"),
        help=help_text,
    )


def file_argument(name: str, *, required: bool = True) -> Callable[[_F], _F]:
    """Return an argument that names a file to read; the stage says what is wrong with it."""
    return click.argument(name, type=_FILE, required=required)


class _Parsed(click.ParamType[object]):
    """A click type from one of our parsers, whose errors are already sentences."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Parse text; pass defaults through."""
        del param, ctx
        return self._parse(value) if isinstance(value, str) else value


def _parse_clocks(text: str) -> "Clocks":
    core, comma, mem = text.partition(",")
    if not comma:
        raise UsageError(f"cannot read {text!r} as clocks", hint="write CORE,MEMORY: 1740,auto")
    from underclock.records import Clocks

    return Clocks(core_mhz=parse_mhz(core), mem_mhz=parse_mhz(mem))


def _parse_watts(text: str) -> float:
    try:
        return float(text.strip().removesuffix("W").removesuffix("w"))
    except ValueError:
        raise UsageError(f"cannot read {text!r} as a power", hint="write watts: 56W") from None


def _parse_mhz_list(text: str) -> tuple[int | None, ...]:
    clocks: list[int | None] = []
    for part in text.split(","):
        bounds = part.split(":")
        if len(bounds) == 3:  # noqa: PLR2004 - low:high:step
            low, high, step = (parse_mhz(bound) or 0 for bound in bounds)
            if step == 0 or low == 0 or high < low:
                raise UsageError(f"cannot read {part!r} as a range", hint="write 210:2100:210")
            clocks.extend(range(low, high + 1, step))
        else:
            clocks.append(parse_mhz(part))
    return tuple(clocks)


def _parse_pace(text: str) -> tuple[float | None, float]:
    warm, comma, window = text.rpartition(",")
    return (parse_duration(warm) if comma else None), parse_duration(window)


FRACTION = _Parsed("fraction", parse_fraction)
DURATION = _Parsed("duration", parse_duration)
CLOCKS = _Parsed("core,memory", _parse_clocks)
MHZ_LIST = _Parsed("mhz", _parse_mhz_list)
WATTS = _Parsed("watts", _parse_watts)
PACE = _Parsed("duration", _parse_pace)

baseline_option = more_option(
    "--baseline", type=CLOCKS, help="Call these auto, where a table has no auto rows."
)
