"""Which GPUs a plan is refused on: those of another power limit than its samples."""

import msgspec
import pytest

from invented import PLAN
from underclock.errors import DataError
from underclock.records import Evidence, GpuInfo

_GPU = GpuInfo(name="G", power_limit_w=250.0)
_MADE = msgspec.structs.replace(PLAN, gpu=_GPU, evidence=Evidence.MEASURED)


def test_a_gpu_at_another_limit_is_refused_with_what_would_set_it() -> None:
    with pytest.raises(DataError, match="limit of 250 W, this GPU is limited to 350 W") as refused:
        _MADE.check_gpu(GpuInfo(name="G", power_limit_w=350.0))

    assert "`sudo nvidia-smi -pl 250`" in str(refused.value.hint)
    assert _MADE.check_gpu(GpuInfo(name="G", power_limit_w=350.0), any_limit=True) == ()
    simulated = msgspec.structs.replace(_MADE, evidence=Evidence.SIMULATED)
    with pytest.raises(DataError, match="limit of 250 W") as refused:
        simulated.check_gpu(GpuInfo(name="G", power_limit_w=350.0))
    assert "sudo" not in str(refused.value.hint)


@pytest.mark.parametrize("found_w", [249.1, 250.0, 250.9, None])
def test_a_limit_may_be_a_watt_off_or_unread(found_w: float | None) -> None:
    assert _MADE.check_gpu(GpuInfo(name="G", power_limit_w=found_w)) == ()


@pytest.mark.parametrize("found_w", [248.5, 251.5])
def test_a_limit_is_not_more_than_a_watt_off(found_w: float) -> None:
    with pytest.raises(DataError, match="this GPU is limited to"):
        _MADE.check_gpu(GpuInfo(name="G", power_limit_w=found_w))
