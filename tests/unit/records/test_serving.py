"""Tables of clocks by phase, batch and context."""

from collections.abc import Callable

import msgspec
import pytest

from underclock.records import Clocks, Evidence, GpuInfo, Pass
from underclock.records.serving import Basis, ServingBucket, ServingCost, ServingPlan


def cost(mhz: int | None, time_s: float, energy_j: float) -> ServingCost:
    return ServingCost(
        clocks=Clocks(core_mhz=mhz),
        time_s=time_s,
        time_interval_s=(time_s * 0.99, time_s * 1.01),
        energy_j=energy_j,
        energy_interval_j=(energy_j * 0.98, energy_j * 1.02),
        basis=Basis.STEERED,
    )


FAST, SLOW = cost(None, 0.010, 2.0), cost(1500, 0.0101, 1.5)


def bucket(batch: int, context: int, phase: Pass = Pass.DECODE) -> ServingBucket:
    return ServingBucket(
        pass_=phase,
        batch=batch,
        context=context,
        tokens=batch,
        auto=FAST,
        chosen=SLOW,
        fixed=SLOW,
        frontier=(FAST, SLOW),
    )


def plan(*buckets: ServingBucket) -> ServingPlan:
    return ServingPlan(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="G"),
        workload="w",
        max_slowdown=0.02,
        fixed=SLOW.clocks,
        buckets=buckets,
    )


def test_a_step_is_of_the_smallest_bucket_that_holds_it() -> None:
    table = plan(*(bucket(b, c) for b in (8, 1, 32) for c in (8192, 1024)))

    found = table.bucket(Pass.DECODE, 2, 1024)
    assert found is not None
    assert (found.batch, found.context) == (8, 1024)
    longer = table.bucket(Pass.DECODE, 2, 1025)
    assert longer is not None
    assert (longer.batch, longer.context) == (8, 8192)
    assert table.bucket(Pass.DECODE, 33) is None
    assert table.bucket(Pass.PREFILL, 1) is None


def test_a_plan_says_what_it_saves() -> None:
    one = bucket(8, 1024)

    assert one.energy_change == pytest.approx(-0.25)
    assert one.time_change == pytest.approx(0.01)
    assert SLOW.power_w == pytest.approx(1.5 / 0.0101)
    assert "-25.0%" in repr(plan(one))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: bucket(0, 1024), "batch must be positive"),
        (lambda: bucket(1, 1, Pass.BACKWARD), "phase is prefill, decode, mixed, got backward"),
        (plan, "at least one bucket"),
        (lambda: plan(bucket(1, 1), bucket(1, 1)), "one bucket for each"),
        (lambda: msgspec.structs.replace(plan(bucket(1, 1)), quantile=1.0), "between 0 and 1"),
        (lambda: msgspec.structs.replace(plan(bucket(1, 1)), max_slowdown=2.0), "max_slowdown"),
        (lambda: msgspec.structs.replace(bucket(1, 1), frontier=()), "fastest first"),
        (lambda: msgspec.structs.replace(bucket(1, 1), frontier=(SLOW, FAST)), "fastest first"),
        (lambda: msgspec.structs.replace(bucket(1, 1), auto=SLOW), "auto cannot be at"),
        (lambda: msgspec.structs.replace(FAST, time_s=1.0), "does not hold"),
        (lambda: msgspec.structs.replace(FAST, time_interval_s=(0.0, 1.0)), "must be positive"),
    ],
)
def test_tables_that_cannot_be_are_refused(make: Callable[[], object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()
