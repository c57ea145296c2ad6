"""The schema number of every kind of file. This is the one place where a number is raised.

A number grows by one with every change that an older reader would misread: a field added, renamed
or taken away, for readers refuse fields that they do not know. Each kind counts for itself. One
file of every kind and number lies in ``tests/data/schemas``.
"""

from typing import Final

from underclock.errors import DataError

SCHEMAS: Final = {
    "step": 6,
    "samples": 8,
    "merged samples": 1,
    "plan": 12,
    "validation": 5,
    "latencies": 4,
    "driver moves": 1,
    "job": 1,
    "job plan": 1,
    "serving plan": 1,
    "GPU model": 1,
}


def check_schema(where: object, kind: str, schema: int, remake: str) -> None:
    """Refuse a file of another schema; ``remake`` is a hint at what makes such a file anew.

    Raises:
        DataError: The file was written by an older or a newer version.
    """
    current = SCHEMAS[kind]
    if schema == current:
        return
    age, hint = ("a newer", "upgrade underclock") if schema > current else ("an older", remake)
    raise DataError(
        f"{where} was written by {age} underclock: it has schema {schema}, this version reads "
        f"schema {current}",
        hint=hint,
    )
