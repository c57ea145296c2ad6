"""A GPU that only remembers, and a folder for what runs keep."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from underclock.errors import DeviceError, UnderclockError
from underclock.hw.settable import Setting, Value
from users import AsNobody, second_user


class RememberingGpu:
    """Keeps what is set; a driver that tells of locks no more than NVML does."""

    uuid = "GPU-0"

    def __init__(self) -> None:
        self.values: dict[Setting, Value] = {
            Setting.CORE: None,
            Setting.MEMORY: None,
            Setting.LIMIT: 350.0,
        }
        self.refused: dict[Setting, UnderclockError] = {}
        self.unreadable: set[Setting] = set()
        self.written: list[tuple[Setting, Value]] = []

    def read(self, setting: Setting) -> Value:
        if setting in self.unreadable:
            raise DeviceError(f"cannot read the {setting}")
        return None if setting in {Setting.CORE, Setting.MEMORY} else self.values[setting]

    def write(self, setting: Setting, value: Value) -> None:
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
