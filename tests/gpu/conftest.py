"""What every test on a real GPU rests on: nothing is written to it, memory is given back."""

import sys
from collections.abc import Iterator

import pytest

from underclock.hw.nvml_calls import READ_ONLY


@pytest.fixture(autouse=True)
def read_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(READ_ONLY, "1")
    yield
    torch = sys.modules.get("torch")  # whoever tests a driver only needs none
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
