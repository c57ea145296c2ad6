"""``underclock`` and ``python -m underclock``: signals are heard before commands are loaded."""

import sys

from underclock.hw.interrupts import InterruptedBySignal, interruptible


def main() -> None:
    """Run the command line."""
    try:
        with interruptible():
            from underclock.app import main as command_line  # noqa: PLC0415

            command_line()
    except InterruptedBySignal as exc:  # while that was loaded
        sys.stderr.write("underclock: interrupted\n")
        sys.exit(exc.exit_code)


if __name__ == "__main__":
    main()
