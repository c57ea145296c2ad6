"""Files that something damaged: read as they were, or refused with a sentence; never otherwise.

A small, seeded part of what was tried on tens of thousands of files.
"""

from pathlib import Path

import pytest

from mutated_files import tried


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_changed_files_of_every_kind_are_read_as_they_say_or_refused(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    counts, wrong = tried(1360, seed)

    assert wrong == []
    for outcome in ("accepted", "refused"):
        assert sum(count for (_, became), count in counts.items() if became == outcome) > 136
