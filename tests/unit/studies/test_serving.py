"""Traces of requests that the study of serving reads."""

from pathlib import Path

import pytest

from serving import read_trace
from serving_engine import Request
from underclock.errors import DataError

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_a_trace_counts_from_its_first_request(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = (
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:47.6805900,8,0",  # makes nothing
        "2023-11-16 18:15:48.6805900,396,109",
    )
    path.write_text(HEAD + "\n".join(rows), encoding="utf-8")

    assert read_trace(path) == (Request(0.0, 374, 44), Request(2.0, 396, 109))


@pytest.mark.parametrize(
    ("text", "found"),
    [("TIMESTAMP,Model\n2023-11-16 18:15:46,a\n", "found TIMESTAMP, Model"), ("", "found none")],
)
def test_a_trace_without_lengths_says_what_was_looked_for_and_found(
    tmp_path: Path, text: str, found: str
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")

    looked = "looked for the columns TIMESTAMP, ContextTokens, GeneratedTokens"
    with pytest.raises(DataError, match=f"{looked}, {found}$"):
        read_trace(path)


def test_a_trace_without_requests_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEAD, encoding="utf-8")

    with pytest.raises(DataError, match="no requests"):
        read_trace(path)
