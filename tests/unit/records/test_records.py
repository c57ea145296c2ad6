"""Records: what each refuses, and what it says of itself."""

import json
import math
from collections.abc import Callable

import msgspec
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from invented import PLAN, read_again, with_plan
from underclock.errors import DataError
from underclock.records import (
    AUTO,
    Arm,
    Choice,
    Clocks,
    ClockSchedule,
    Cost,
    Evidence,
    GpuInfo,
    Kernel,
    LatencyPoint,
    MeasurementSettings,
    Mix,
    Plan,
    Record,
    Segment,
    Status,
    Step,
    StepSource,
    Strategy,
    ThrottleReason,
    Window,
)
from underclock.records.latencies import LatencyTable
from underclock.workloads import workload

NO_QUANTITY = [0, -1, -0.5, math.nan, math.inf, -math.inf]
mhz = st.none() | st.integers(10, 20_000)
clocks = st.builds(Clocks, core_mhz=mhz, mem_mhz=mhz)
COST = Cost(time_s=1.0, energy_j=90.0, time_change=0.0, energy_change=-0.1)

_SOURCE = StepSource(file="train.py", function="step", sha256="0" * 64)


@pytest.mark.parametrize("bad", NO_QUANTITY)
@pytest.mark.parametrize(
    ("kind", "field", "given"),
    [
        (Kernel, "count", {"name": "k"}),
        (Kernel, "bytes_moved", {"name": "k"}),
        (Window, "time_s", {"kernel": "k", "energy_j": 1.0}),
        (Window, "energy_j", {"kernel": "k", "time_s": 1.0}),
    ],
)
def test_a_quantity_that_is_not_positive_and_finite_is_refused_by_name(
    kind: type[Record], field: str, given: dict[str, object], bad: float
) -> None:
    with pytest.raises(ValueError, match=f"{field}.* must be positive and finite"):
        kind(**given, **{field: bad})


@pytest.mark.parametrize(("share", "beside"), [(0.0, True), (0.25, False), (1.0, False)])
def test_a_kernel_counts_as_often_as_a_step_waits_for_it(share: float, *, beside: bool) -> None:
    kernel = Kernel(name="sum", count=8, waited_for=share)
    assert kernel.overlapped is beside
    assert kernel.waited_count == pytest.approx(8.0 * share, abs=1e-4)
    assert kernel.waited_count > 0.0
    assert msgspec.json.decode(msgspec.json.encode(kernel), type=Kernel) == kernel
    older = msgspec.json.encode({"name": "sum", "count": 8})
    assert msgspec.json.decode(older, type=Kernel).waited_for == 1.0


@given(clocks, clocks)
def test_clocks_rank_by_memory_then_core_and_auto_is_fastest(one: Clocks, other: Clocks) -> None:
    def faster(a: int | None, b: int | None) -> bool:
        return b is not None and (a is None or a > b)

    if one.mem_mhz != other.mem_mhz:
        assert (one.rank > other.rank) == faster(one.mem_mhz, other.mem_mhz)
    else:
        assert (one.rank > other.rank) == faster(one.core_mhz, other.core_mhz)
    assert AUTO.rank >= one.rank


@st.composite
def steps(draw: st.DrawFn) -> Step:
    order = draw(st.lists(st.integers(0, 3), min_size=1, max_size=20))
    listed = sorted(set(order))
    return Step(
        name="a step",
        kernels=tuple(Kernel(name=f"k{index}", count=order.count(index)) for index in listed),
        order=tuple(listed.index(index) for index in order),
    )


@given(steps())
def test_a_step_agrees_with_its_order_or_is_refused(step: Step) -> None:
    def rebuilt(**changes: object) -> Step:
        return msgspec.convert(msgspec.to_builtins(step) | changes, Step)

    assert rebuilt() == step
    with pytest.raises(ValueError, match="is launched"):
        rebuilt(order=[*step.order, 0])
    with pytest.raises(ValueError, match="the launch order names kernel"):
        rebuilt(order=[*step.order, len(step.kernels)])
    with pytest.raises(ValueError, match="the launch order names kernel"):
        rebuilt(order=[*step.order, -1])
    with pytest.raises(ValueError, match="at least one kernel"):
        rebuilt(kernels=[], order=[])
    with pytest.raises(ValueError, match="repeated: 'k"):
        rebuilt(kernels=[*step.kernels, step.kernels[0]])


@given(steps())
def test_a_fingerprint_tells_steps_apart_by_what_costs(step: Step) -> None:
    def changed(**changes: object) -> Step:
        return msgspec.structs.replace(step, **changes)

    first, *rest = step.kernels
    bigger = msgspec.structs.replace(first, flops=1.0)

    assert changed(name="the same under another name").fingerprint == step.fingerprint
    assert changed(parameters={"batch": 1}).fingerprint == step.fingerprint
    assert changed(kernels=(bigger, *rest)).fingerprint != step.fingerprint
    if len(rest) > 0:
        backwards = tuple(reversed(step.order))
        assert (changed(order=backwards).fingerprint == step.fingerprint) == (
            backwards == step.order
        )


def test_the_fingerprint_of_a_named_workload_is_that_of_earlier_files() -> None:
    assert workload("gpt3-xl", {}).fingerprint == "5942451237f32c8c"


def test_an_arm_has_all_of_its_cost_or_none() -> None:
    feasible = Arm(Strategy.PASS, COST, Status.OPTIMAL, gap=0.0)
    infeasible = Arm(Strategy.PASS, None, Status.INFEASIBLE)

    assert (feasible.time_change, feasible.energy_change) == (0.0, -0.1)
    assert infeasible.time_change is infeasible.energy_change is None
    with pytest.raises(ValueError, match="is infeasible, and has costs"):
        msgspec.structs.replace(feasible, status=Status.INFEASIBLE)


AUTO_ARM = Arm(
    Strategy.AUTO,
    Cost(time_s=1.0, energy_j=100.0, time_change=0.0, energy_change=0.0),
    Status.BASELINE,
)
BEST_ARM = Arm(Strategy.KERNEL_GLOBAL, COST, Status.OPTIMAL, gap=0.0)
_ACHIEVABLE_ARM = Arm(Strategy.ACHIEVABLE, COST, Status.BOUNDED, gap=0.01)
_TWO_LAUNCHES = ClockSchedule(
    segments=(Segment(launches=2, clocks=Clocks(core_mhz=900)),),
    switches=0,
    latency="6ms",
    latencies=LatencyTable.constant(0.006),
    launch_s=(0.01,) * 2,
)


def plan(*arms: Arm, **parts: object) -> Plan:
    cleared = dict.fromkeys(("fixed", "bound", "closure"))
    usual: dict[str, object] = {
        "chosen": "kernel_global",
        "kernels": {"a": _choice()},
        "frontier": (),
        **cleared,
    }
    return with_plan(arms=arms, **usual | parts)


def test_a_plan_promises_what_its_chosen_arm_costs() -> None:
    made = plan(AUTO_ARM, BEST_ARM)

    assert made.promise == COST
    assert made.arm(Strategy.AUTO) == AUTO_ARM
    with pytest.raises(KeyError, match="pass"):
        made.arm(Strategy.PASS)


def test_what_the_gpu_can_follow_counts_where_its_latency_is_given() -> None:
    held = _ACHIEVABLE_ARM
    schedule = _TWO_LAUNCHES
    made = plan(AUTO_ARM, BEST_ARM, held, chosen=Strategy.ACHIEVABLE, schedule=schedule)

    assert plan(AUTO_ARM, BEST_ARM).headline == BEST_ARM
    assert made.headline == held
    assert made.promise == COST
    for parts in ({"schedule": schedule}, {"chosen": Strategy.ACHIEVABLE}):
        with pytest.raises(ValueError, match="a schedule, and only that, is achievable"):
            plan(AUTO_ARM, BEST_ARM, held, **parts)


@pytest.mark.parametrize(
    "arms",
    [
        (),
        (Arm(Strategy.PASS, COST, Status.OPTIMAL, gap=0.0),),
        (Arm(Strategy.KERNEL_GLOBAL, None, Status.INFEASIBLE),),
    ],
    ids=["no arm", "another arm", "infeasible"],
)
def test_a_plan_without_costs_for_its_chosen_arm_is_refused(arms: tuple[Arm, ...]) -> None:
    with pytest.raises(ValueError, match="'kernel_global' has no costs"):
        plan(*arms)


def _choice(core_mhz: int | None = 900) -> Choice:
    return Choice(
        clocks=Clocks(core_mhz=core_mhz),
        time_change=0.0,
        energy_change=0.0,
        auto_time_s=1.0,
        auto_energy_j=1.0,
    )


_RUNS = (Kernel(name="a", count=2), Kernel(name="b"))
_WHOLE: dict[str, object] = {
    "step": Step(name="w", kernels=_RUNS, order=(0, 1, 0)),
    "kernels": {"a": _choice(), "b": _choice()},
}


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"kernels": {"a": _choice()}}, "no clocks for 'b', which it runs"),
        ({"step": Step(name="w", kernels=_RUNS[:1])}, "clocks for 'b', which it lacks"),
        (
            {"schedule": _TWO_LAUNCHES, "chosen": Strategy.ACHIEVABLE},
            "the schedule is of 2 launches, the step of 3",
        ),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(parts: dict[str, object], sentence: str) -> None:
    assert plan(AUTO_ARM, BEST_ARM, **_WHOLE).step.order == (0, 1, 0)

    with pytest.raises(ValueError, match=sentence):
        plan(AUTO_ARM, BEST_ARM, _ACHIEVABLE_ARM, **_WHOLE | parts)


@pytest.mark.parametrize("bits", [0x0, 0x4, 0x48, 0x1FF, 0x1000_0004])
def test_throttle_reasons_are_a_number_in_files_and_keep_bits_nobody_named(bits: int) -> None:
    sample = Window(kernel="a", time_s=1.0, energy_j=1.0, throttle_reasons=ThrottleReason(bits))
    text = msgspec.json.encode(sample)
    found = msgspec.json.decode(text, type=Window)
    assert json.loads(text)["throttle_reasons"] == bits
    assert found == sample
    assert isinstance(found.throttle_reasons, ThrottleReason)


def test_throttle_reasons_are_nvmls() -> None:
    for reason in ThrottleReason:
        name = "".join(word.capitalize() for word in str(reason.name).split("_"))
        assert getattr(pynvml, f"nvmlClocksEventReason{name}") == reason


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: GpuInfo(name=""), "length >= 1 - at `\\$.name`"),
        (lambda: GpuInfo(name="g", power_limit_w=0.0), "> 0.0 - at `\\$.power_limit_w`"),
        (lambda: Window(time_s=1.0, energy_j=1.0, window_s=0.0), "> 0.0 - at `\\$.window_s`"),
        (lambda: Window(time_s=1.0, energy_j=1.0, ticks=-1), ">= 0 - at `\\$.ticks`"),
        (lambda: Window(time_s=1.0, energy_j=1.0, temperature_c=65e3), "<= 200"),
        (lambda: Window(time_s=1.0, energy_j=1.0, temperature_c=-300.0), ">= -60"),
        (lambda: GpuInfo(name="g", power_range_w=(300.0, 100.0)), "is positive and ascends"),
        (lambda: GpuInfo(name="g", power_range_w=(math.nan, 300.0)), "is positive and ascends"),
        (lambda: Kernel(name=""), "needs a name"),
        (lambda: Kernel(name="k", flops=-1.0), "flops"),
        (lambda: Kernel(name="k", flops=1e19), "of one launch is 1e"),
        (lambda: Kernel(name="k", bytes_moved=1e16), "of one launch is 1e"),
        (lambda: Kernel(name="k", waited_for=1.1), "waited_for must be from 0 to 1"),
        (lambda: msgspec.structs.replace(_SOURCE, file=""), "source needs"),
        (lambda: msgspec.structs.replace(_SOURCE, function="a b"), "source needs"),
        (lambda: msgspec.structs.replace(_SOURCE, sha256="abc"), "64 hexadecimal"),
        (lambda: MeasurementSettings(window_s=0.0), "> 0.0 - at `\\$.window_s`"),
        (lambda: MeasurementSettings(launches=0), ">= 1 - at `\\$.launches`"),
        (lambda: MeasurementSettings(warm_s=-1.0), ">= 0.0 - at `\\$.warm_s`"),
        (lambda: MeasurementSettings(steady_s=0.0), "> 0.0 - at `\\$.steady_s`"),
        (lambda: Mix(hot=-1), ">= 0 - at `\\$.hot`"),
        (lambda: Mix(after=(2, 1), hot=2), "must be positive and ascend"),
        (lambda: Mix(after=(1, 2), hot=3), "3 heaters do not make 2 pieces that are alike"),
        (lambda: _choice(20_001), "<= 20000 - at `\\$.clocks.core_mhz`"),
        (lambda: Segment(launches=1, clocks=Clocks(mem_mhz=9)), ">= 10 - at `\\$.clocks.mem_mhz`"),
        (lambda: msgspec.structs.replace(_TWO_LAUNCHES, launch_j=(1.0,)), "have 1 energies"),
        (
            lambda: msgspec.structs.replace(_TWO_LAUNCHES, launch_j=(1.0, -1.0)),
            "> 0.0 - at `\\$.launch_j",
        ),
        (
            lambda: LatencyPoint(
                latency_s=1e-3, time_change=0.0, energy_change=0.0, switches=1, gap=-1e-9
            ),
            ">= 0.0 - at `\\$.gap`",
        ),
        (lambda: plan(BEST_ARM), "'auto' has no costs"),
        (lambda: with_plan(latency_range_s=(0.1, 0.1)), "must ascend"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError), match=sentence):
        read_again(make())


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
