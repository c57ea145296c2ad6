"""Text to a terminal: names come from files and drivers, and may carry escape sequences."""

import contextlib

import click

_KEPT = "\n\t"
_BIDIRECTIONAL = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))  # they turn text around
_ESCAPES = {
    code: f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *_BIDIRECTIONAL)
    if chr(code) not in _KEPT
}


def clean(text: str) -> str:
    """Return a text with control characters written out, as JSON writes them."""
    return text.translate(_ESCAPES)


def say(text: str, *, err: bool = False) -> None:
    """Print a line for a person, or JSON for a machine.

    What nobody reads on stderr, for its disk is full or its reader has gone, ends nothing.
    """
    with contextlib.suppress(*((OSError, ValueError) if err else ())):
        click.echo(clean(text), err=err)
