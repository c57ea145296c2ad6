"""What lies in docs/examples is what its script makes."""

import csv
import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_FOLDER = Path(__file__).parents[2] / "docs" / "examples"
_NUMBERS = ("time_s", "energy_j", "power_w", "temperature_c")


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_the_tables_are_what_the_simulator_says() -> None:
    made = runpy.run_path(str(_FOLDER / "make.py"), run_name="make")

    for name, repeats in made["_TABLES"].items():
        anew, kept = (
            _rows(text) for text in (made["table"](repeats), (_FOLDER / name).read_text())
        )
        assert len(kept) == 4 * 18 * repeats
        for one, other in zip(anew, kept, strict=True):
            assert "(simulated)" in other["gpu"]
            # Libraries of other machines may round otherwise.
            assert [float(one[key]) for key in _NUMBERS] == pytest.approx(
                [float(other[key]) for key in _NUMBERS], rel=1e-3
            )
            assert one.items() - other.items() <= {(key, one[key]) for key in _NUMBERS}
