"""The parts that `studies/ablation.py` switches off are where it says."""

import pytest

from ablation_parts import INFERENCE, MODEL, NINE, Off, without


@pytest.mark.parametrize("off", [*MODEL.values(), *INFERENCE.values()], ids=[*MODEL, *INFERENCE])
def test_every_part_is_there_to_be_switched_off(off: Off) -> None:
    with without(off):
        pass


def test_the_nine_are_parts_of_the_fit() -> None:
    assert len(NINE) == 9
    assert set(NINE) <= set(MODEL)
