"""``python -m underclock``."""

from underclock.cli import main

main()
