"""Records at a glance: a few lines in a shell, a small table in a notebook, a frame for pandas.

A record lists its facts; how they are written is here.
"""

import html
import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from underclock.errors import NotSupportedError

Facts = Iterable[tuple[str, str]]
_FEW = 3  # items of a collection that are written out; of more the number
_MOST_TEXT, _MOST_RECORD = 80, 600  # characters: a record fits a screen, whatever it holds


def as_brief(record: Any) -> str:  # noqa: ANN401 - any Struct
    """Write a record's fields that say something: what is long as how many there are."""
    given = []
    for name, default in _defaults(type(record)):
        value = getattr(record, name)
        if name != "schema" and value is not default and value != default:
            given.append(f"{name}={_written(value)}")
    return f"{type(record).__name__}({_cut(', '.join(given), _MOST_RECORD)})"


def _defaults(cls: Any) -> Iterator[tuple[str, object]]:  # noqa: ANN401 - any Struct
    names, values = cls.__struct_fields__, cls.__struct_defaults__
    missing = len(names) - len(values)
    yield from zip(names, (*(object() for _ in range(missing)), *values), strict=True)


def _written(value: object) -> str:
    if isinstance(value, tuple | list | dict | frozenset) and len(value) > _FEW:
        return f"<{len(value)}>"
    return _cut("".join(c for c in repr(value) if c.isprintable()), _MOST_TEXT)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def as_frame(rows: Iterable[Mapping[str, object]]) -> Any:  # noqa: ANN401 - pandas is not needed
    """Return rows as a pandas DataFrame.

    Raises:
        NotSupportedError: pandas is not installed.
    """
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as exc:
        raise NotSupportedError(
            "a DataFrame needs pandas, which is not installed", hint="pip install pandas"
        ) from exc
    return pandas.DataFrame(list(rows))


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
