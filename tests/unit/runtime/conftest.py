"""A GPU that only remembers, and a folder for what runs keep."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from underclock.hw.nvml_calls import Lock, Value
from underclock.units import Domain
from users import AsNobody, second_user

if TYPE_CHECKING:
    from underclock.errors import UnderclockError


class RememberingGpu:
    """Keeps what is set; a driver that tells of locks no more than NVML does."""

    uuid = "GPU-0"

    def __init__(self) -> None:
        self.values: dict[Domain, Value] = dict.fromkeys(Domain)
        self.refused: dict[Domain, UnderclockError] = {}
        self.written: list[tuple[Domain, Value]] = []

    def read(self, setting: Domain) -> Lock:
        del setting
        return None

    def write(self, setting: Domain, value: Value) -> None:
        if setting in self.refused:
            raise self.refused[setting]
        self.written.append((setting, value))
        self.values[setting] = value


@pytest.fixture
def gpu() -> RememberingGpu:
    return RememberingGpu()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def as_nobody() -> Iterator[AsNobody]:
    with second_user() as made:
        yield made
