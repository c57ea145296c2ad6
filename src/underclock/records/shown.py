"""Records at a glance: one line in a shell, a small table in a notebook.

A record lists its facts; how they are written is here.
"""

import html
from collections.abc import Iterable

Facts = Iterable[tuple[str, str]]


def as_line(kind: str, heading: str, facts: Facts) -> str:
    """Write a record as one line; what would move a terminal's cursor is left away."""
    text = f"<{kind} of {heading}: {', '.join(f'{name} {fact}' for name, fact in facts)}>"
    return "".join(character for character in text if character.isprintable())


def as_html(kind: str, heading: str, facts: Facts) -> str:
    """Write a record as a small HTML table; everything in it is escaped."""
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(fact)}</td></tr>" for name, fact in facts
    )
    caption = f"<caption>{html.escape(f'{kind} of {heading}')}</caption>"
    return f"<table>{caption}<tbody>{rows}</tbody></table>"
