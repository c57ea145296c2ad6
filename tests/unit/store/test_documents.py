"""Records as JSON files: there and back, and every way a file can be wrong."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import refused
from invented import PLAN
from mutated_files import RECORDS
from underclock.errors import DataError
from underclock.records import (
    SCHEMAS,
    Kernel,
    Plan,
    Record,
    SampleSet,
    Step,
)
from underclock.store import read_document, read_samples, write_document

STEP = Step(name="a step", kernels=(Kernel(name="k", count=2),), order=(0, 0))


def written(path: Path, **changes: object) -> Path:
    """Write a step with some of its JSON changed; ``None`` removes a field."""
    write_document(path, STEP)
    body = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in body.items() if value is not None}))
    return path


def assert_refused(path: Path, *words: str, kind: type[Record] = Step) -> DataError:
    """Reading is a `DataError` that names the file, says these words, and what to do."""
    error = refused.assert_refused(lambda: read_document(path, kind), path, *words)
    assert error.hint
    return error


def test_a_document_is_text_that_people_can_read_and_compare(tmp_path: Path) -> None:
    path = tmp_path / "step.json"

    write_document(path, STEP)

    text = path.read_text()
    assert text.endswith("}\n")
    assert len(text.splitlines()) > 10
    assert json.loads(text)["schema"] == SCHEMAS["step"]


def test_a_missing_file_says_which_command_makes_it(tmp_path: Path) -> None:
    error = assert_refused(tmp_path / "plan.json", "No such file", kind=Plan)

    assert "underclock plan" in error.hint


_STEP = f'{{"kind": "step", "schema": {SCHEMAS["step"]}'.encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        _STEP + b', "name": "a st',
        b"[1, 2]",
        b"null",
        b"gpu,kernel\nx,y\n",
        b"\xff\xfe\x00\x01 binary \x00 junk",
        _STEP + b', "name": "\xff"}',
        _STEP + b', "name": "\xff\xff\xff", "kernels": [], "order": []}',
        b'{"schema": "one"}',
        _STEP + b', "deep": ' + b"[" * 100_000,
        b"SQLite format 3\x00" + b"\x00" * 200,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_what_is_no_json_record_is_refused(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "step.json"
    path.write_bytes(body)

    assert_refused(path, "not a readable step file")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"name": None}, "name"),
        ({"name": 3}, "$.name"),
        ({"extra": 1}, "extra"),
        ({"kernels": []}, "at least one kernel"),
        ({"order": []}, "launched in no order"),
        ({"order": [0]}, "count 2 but is launched 1"),
        ({"order": [0, 0, 1]}, "names kernel 1"),
        ({"order": ["first"]}, "$.order[0]"),
        ({"kernels": [{"name": "k", "count": -2}]}, "count must be positive"),
        ({"kernels": [{"name": "k", "pass": "sideways"}]}, "$.kernels[0].pass"),
    ],
)
def test_a_damaged_field_is_named(tmp_path: Path, changes: dict[str, object], word: str) -> None:
    assert_refused(written(tmp_path / "step.json", **changes), word)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("max_slowdown",), 5.0, "< 1.0 - at `$.max_slowdown`, which is 5.0"),
        (
            ("kernels", "kernel3", "auto_time_s"),
            -1,
            "> 0.0 - at `$.kernels[...].auto_time_s`, which is -1",
        ),
        (("arms", 4, "cost", "time_s"), 0.0, "> 0.0 - at `$.arms[4].cost.time_s`, which is 0.0"),
        (("fixed", "core_mhz"), 9, ">= 10 - at `$.fixed.core_mhz`, which is 9"),
    ],
)
def test_a_number_beyond_its_bound_is_named_with_its_place_and_what_makes_the_file_anew(
    tmp_path: Path, place: tuple[str | int, ...], value: float, words: str
) -> None:
    parts: Any = msgspec.json.decode(msgspec.json.encode(PLAN))
    inner = parts
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(parts))
    with pytest.raises(DataError, match=re.escape(words)) as caught:
        read_document(path, Plan)
    assert str(path) in str(caught.value)
    assert caught.value.hint == "make it anew with `underclock plan`"


FILES = Path(__file__).parents[2] / "data" / "schemas"


def _path(kind: str, schema: int) -> Path:
    return FILES / f"{kind}.{schema}.{'db' if kind.endswith('samples') else 'json'}"


def _read(path: Path) -> Record:
    kind = path.name.partition(".")[0]
    return read_samples(path) if kind.endswith("samples") else read_document(path, RECORDS[kind])


EARLIER = [
    _path(kind, n)
    for kind in (*RECORDS, "samples", "merged samples")
    for n in range(1, SCHEMAS[kind])
]


@pytest.mark.parametrize("kind", [*RECORDS, "samples", "merged samples"])
def test_a_file_of_the_current_schema_is_read_and_comes_back(kind: str, tmp_path: Path) -> None:
    found = _read(_path(kind, SCHEMAS[kind]))

    assert getattr(found, "schema", SCHEMAS[kind]) == SCHEMAS[kind]
    if isinstance(found, SampleSet):
        assert len(found.samples) == found.expected_samples == 4
        return
    write_document(tmp_path / "again.json", found)
    assert read_document(tmp_path / "again.json", RECORDS[kind]) == found


@pytest.mark.parametrize("path", EARLIER, ids=lambda path: path.name)
def test_a_file_of_an_earlier_schema_says_how_to_make_it_anew(path: Path) -> None:
    with pytest.raises(DataError, match="was written by an older underclock: it has sch") as caught:
        _read(path)

    assert str(path) in str(caught.value)
    assert "again with `underclock" in caught.value.hint or "anew with" in caught.value.hint


@pytest.mark.parametrize("kind", RECORDS)
def test_a_file_of_a_later_schema_says_to_upgrade(kind: str, tmp_path: Path) -> None:
    body = json.loads(_path(kind, SCHEMAS[kind]).read_text())
    later = tmp_path / f"{kind}.json"
    later.write_text(json.dumps(body | {"schema": SCHEMAS[kind] + 1, "invention": [1, 2]}))

    with pytest.raises(DataError, match="was written by a newer underclock") as caught:
        _read(later)

    assert caught.value.hint == "upgrade underclock"


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("other", RECORDS)
def test_a_file_of_another_kind_is_called_by_its_name(kind: str, other: str) -> None:
    if kind == other:
        return
    path = _path(other, SCHEMAS[other])
    with pytest.raises(DataError, match=f"is a {other} file, where a {kind} file is needed"):
        read_document(path, RECORDS[kind])
