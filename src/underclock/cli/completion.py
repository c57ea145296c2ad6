"""Completion in shells: commands and options by click, GPUs and workloads by what there is."""

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from underclock.cli.terminal import say
from underclock.errors import UsageError

_VARIABLE = "_UNDERCLOCK_COMPLETE"
_PLACES = {  # where each shell looks by itself, or what makes it look there
    "bash": ("{data}/bash-completion/completions/underclock", ""),
    "zsh": (
        "{home}/.zfunc/_underclock",
        "in ~/.zshrc: fpath=(~/.zfunc $fpath); autoload -Uz compinit; compinit",
    ),
    "fish": ("{config}/fish/completions/underclock.fish", ""),
}
_ONE_WORD = "COMP_WORDBREAKS=${COMP_WORDBREAKS//:/}  # sim:NAME is one word\n"


class GpuText(click.ParamType[str]):
    """What follows ``--gpu``; it is read by the stages."""

    name = "GPU"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the simulated GPUs, the driver's, and where a file's name begins."""
        del ctx, param
        from underclock.errors import UnderclockError
        from underclock.gpus.catalogue import model_names
        from underclock.hw.nvml_calls import gpu_count, nvml_session

        try:
            with nvml_session():
                count = gpu_count()
        except UnderclockError:
            count = 0
        names = [*(f"sim:{name}" for name in model_names()), "replay:"]
        names += [f"nvml:{index}" for index in range(count)]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class WorkloadText(click.ParamType[str]):
    """A named workload, or a file."""

    name = "WORKLOAD"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the workloads; the shell adds files."""
        del ctx, param
        from underclock.workloads import MODELS

        names = [CompletionItem(name) for name in MODELS if name.startswith(incomplete)]
        return names or [CompletionItem(incomplete, type="file")]


def install(context: click.Context, _option: click.Parameter, shell: str | None) -> None:
    """Write what a shell reads to complete ``underclock``, say where, and end.

    Raises:
        UsageError: It cannot be written.
    """
    if shell is None or context.resilient_parsing:
        return
    home = Path.home()
    place, then = _PLACES[shell]
    file = Path(
        place.format(
            home=home,
            data=os.environ.get("XDG_DATA_HOME") or home / ".local/share",
            config=os.environ.get("XDG_CONFIG_HOME") or home / ".config",
        )
    )
    made = get_completion_class(shell)
    if made is None:
        raise AssertionError("it is one of click's")
    # Its check of the shell's version would run one.
    source = made(context.command, {}, "underclock", _VARIABLE)
    text = source.source_template % source.source_vars()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_ONE_WORD * (shell == "bash") + text)
    except OSError as exc:
        raise UsageError(f"cannot write {file}: {exc.strerror}") from exc
    say(f"wrote {file}; a new {shell} completes underclock")
    if then:
        say(then)
    context.exit()
