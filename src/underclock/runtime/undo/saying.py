"""A sentence of a process that has no terminal of its own, to whoever started it."""

import contextlib
import os
import sys


def say(sentence: str) -> None:
    """Write a sentence to stderr, if somebody still reads it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it may be closed, or none
        os.write(sys.stderr.fileno(), f"underclock: {sentence}\n".encode())
