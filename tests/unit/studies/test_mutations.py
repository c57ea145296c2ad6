"""Hundreds of edited, cut and garbled files: no traceback, no hang, none says other than it did."""

from pathlib import Path

import pytest

from mutations import attack


@pytest.mark.slow
@pytest.mark.untraced
def test_an_edited_file_is_refused_or_says_what_follows_from_it(tmp_path: Path) -> None:
    done: list[int] = []
    tally = attack(300, 26, tmp_path, done.append)

    assert tally.told == []
    assert set(tally.counts) == {"answered", "refused"}
    assert done[-1] == tally.counts.total() == 300
    assert min(tally.counts.values()) > 30
