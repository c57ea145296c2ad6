"""The command line: parse, call a stage, print. One module per command, loaded on use.

Results go to stdout, progress and warnings to stderr, ``--json`` is for machines. This package is
the only one that prints.
"""

from underclock.app.main import main

__all__ = ["main"]
