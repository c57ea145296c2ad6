"""The parts that `studies/ablation.py` switches off are where it says."""

import pytest

from ablation_parts import INFERENCE, MODEL, Off, without


@pytest.mark.parametrize("off", [*MODEL.values(), *INFERENCE.values()], ids=[*MODEL, *INFERENCE])
def test_every_part_is_there_to_be_switched_off(off: Off) -> None:
    with without(off):
        pass
