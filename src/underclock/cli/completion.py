"""Completion in shells: commands and options by click, GPUs and workloads by what there is."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from underclock.cli.terminal import say
from underclock.errors import UnderclockError, UsageError

_PLACES = {  # where each shell looks, by itself or once it is told
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/underclock"),
    "zsh": ("ZDOTDIR", "", ".zfunc/_underclock"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/underclock.fish"),
}
_FIRST = {"bash": "COMP_WORDBREAKS=${COMP_WORDBREAKS//:/}  # sim:NAME is one word\n"}
_THEN = {"zsh": "in .zshrc: fpath=(~/.zfunc $fpath); autoload -Uz compinit; compinit"}


class Offered(click.ParamType[str]):
    """Text that is read by the stages, some of which a shell may offer; else files are."""

    def __init__(self, name: str, names: Callable[[], Sequence[str]]) -> None:
        self.name = name
        self._names = names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return what begins so."""
        del ctx, param
        offered = [CompletionItem(name) for name in self._names() if name.startswith(incomplete)]
        return offered or [CompletionItem(incomplete, type="file")]


def _gpus() -> Sequence[str]:
    from underclock.gpus.catalogue import model_names
    from underclock.hw.nvml_calls import gpu_count, nvml_session

    try:
        with nvml_session():
            count = gpu_count()
    except UnderclockError:
        count = 0
    simulated = [f"sim:{name}" for name in model_names()]
    return [*simulated, "replay:", *(f"nvml:{index}" for index in range(count))]


def _workloads() -> Sequence[str]:
    from underclock.workloads import MODELS

    return list(MODELS)


GPU, WORKLOAD = Offered("GPU", _gpus), Offered("WORKLOAD", _workloads)


def install(context: click.Context, _option: click.Parameter, shell: str | None) -> None:
    """Write what a shell reads to complete ``underclock``, say where, and end.

    Raises:
        UsageError: It cannot be written.
    """
    made = None if shell is None else get_completion_class(shell)
    if shell is None or made is None or context.resilient_parsing:
        return
    variable, usual, name = _PLACES[shell]
    file = Path(os.environ.get(variable) or Path.home() / usual) / name
    # Its own way to the text asks the shell for its version.
    script = made(context.command, {}, "underclock", "_UNDERCLOCK_COMPLETE")
    text = script.source_template % script.source_vars()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_FIRST.get(shell, "") + text)
    except OSError as exc:
        raise UsageError(f"cannot write {file}: {exc.strerror}") from exc
    say(f"wrote {file}; a new {shell} completes underclock. {_THEN.get(shell, '')}".strip())
    context.exit()
