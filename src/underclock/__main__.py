"""``python -m underclock``."""

from underclock.app import main

main()
