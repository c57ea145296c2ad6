"""One file of every kind and schema: the current one is read, others say what to do."""

import json
from pathlib import Path

import pytest

from mutated_files import RECORDS
from underclock.errors import DataError
from underclock.records import SCHEMAS, Record, SampleSet
from underclock.store import read_document, read_samples, write_document

FILES = Path(__file__).parents[2] / "data" / "schemas"


def _path(kind: str, schema: int) -> Path:
    return FILES / f"{kind}.{schema}.{'db' if kind.endswith('samples') else 'json'}"


def _read(path: Path) -> Record:
    kind = path.name.partition(".")[0]
    return read_samples(path) if kind.endswith("samples") else read_document(path, RECORDS[kind])


EARLIER = [_path(kind, n) for kind in (*RECORDS, "samples") for n in range(1, SCHEMAS[kind])]


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
