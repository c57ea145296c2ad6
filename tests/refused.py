"""What every refusal of a file has in common."""

from collections.abc import Callable
from pathlib import Path

import pytest

from underclock.errors import DataError


def assert_refused(read: Callable[[], object], path: Path, *words: str) -> DataError:
    """Reading is a `DataError` that names the file and says these words in one line."""
    with pytest.raises(DataError) as caught:
        read()
    message = str(caught.value)
    assert str(path) in message
    for word in words:
        assert word in message
    assert "Traceback" not in message
    assert "\n" not in message
    return caught.value
