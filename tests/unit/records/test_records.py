"""Records: what each refuses, and what it says of itself."""

import json
import math

import msgspec
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from invented import with_plan
from underclock.records import (
    AUTO,
    Arm,
    Choice,
    Clocks,
    ClockSchedule,
    Cost,
    GpuInfo,
    Kernel,
    LatencyPoint,
    Launch,
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
CHANGES = {"core_mhz": None, "mem_mhz": None, "time_change": 0.0, "energy_change": 0.0}
COST = Cost(time_s=1.0, energy_j=90.0, time_change=0.0, energy_change=-0.1)

_SOURCE = StepSource(file="train.py", function="step", sha256="0" * 64)


@pytest.mark.parametrize("bad", NO_QUANTITY)
@pytest.mark.parametrize(
    ("kind", "field", "given"),
    [
        (Clocks, "core_mhz", {}),
        (Clocks, "mem_mhz", {}),
        (Kernel, "count", {"name": "k"}),
        (Kernel, "bytes_moved", {"name": "k"}),
        (GpuInfo, "power_limit_w", {"name": "g"}),
        (Choice, "auto_time_s", CHANGES | {"auto_energy_j": 1.0}),
        (Choice, "auto_energy_j", CHANGES | {"auto_time_s": 1.0}),
        (Window, "time_s", {"kernel": "k", "energy_j": 1.0}),
        (Window, "energy_j", {"kernel": "k", "time_s": 1.0}),
        (Window, "window_s", {"kernel": "k", "time_s": 1.0, "energy_j": 1.0}),
    ],
)
def test_a_quantity_that_is_not_positive_and_finite_is_refused_by_name(
    kind: type[Record], field: str, given: dict[str, object], bad: float
) -> None:
    with pytest.raises(ValueError, match=f"{field} must be positive and finite"):
        kind(**given, **{field: bad})


@pytest.mark.parametrize(
    "bad", [(0.0, 300.0), (-1.0, 300.0), (300.0, 100.0), (100.0, math.inf), (math.nan, 300.0)]
)
def test_a_range_of_power_limits_ascends(bad: tuple[float, float]) -> None:
    assert GpuInfo(name="g", power_range_w=(300.0, 300.0)).power_range_w == (300.0, 300.0)
    with pytest.raises(ValueError, match="a range of power limits is positive and ascends"):
        GpuInfo(name="g", power_range_w=bad)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_flops_may_be_zero_but_not_negative_or_infinite(bad: float) -> None:
    assert Kernel(name="copy", flops=0.0).flops == 0.0
    with pytest.raises(ValueError, match="flops"):
        Kernel(name="copy", flops=bad)


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, math.inf])
def test_a_step_waits_for_a_share_of_a_kernel(bad: float) -> None:
    with pytest.raises(ValueError, match="waited_for must be from 0 to 1"):
        Kernel(name="sum", waited_for=bad)


@pytest.mark.parametrize(("share", "beside"), [(0.0, True), (0.25, False), (1.0, False)])
def test_a_kernel_counts_as_often_as_a_step_waits_for_it(share: float, *, beside: bool) -> None:
    kernel = Kernel(name="sum", count=8, waited_for=share)
    assert kernel.overlapped is beside
    assert kernel.waited_count == pytest.approx(8.0 * share, abs=1e-4)
    assert kernel.waited_count > 0.0
    assert msgspec.json.decode(msgspec.json.encode(kernel), type=Kernel) == kernel
    older = msgspec.json.encode({"name": "sum", "count": 8})
    assert msgspec.json.decode(older, type=Kernel).waited_for == 1.0


def test_what_a_step_waits_for_is_no_part_of_its_fingerprint() -> None:
    first, second = (
        Step(name="s", kernels=(Kernel(name="sum", waited_for=share),), order=(0,))
        for share in (0.0, 1.0)
    )
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize("kind", [Kernel, GpuInfo])
def test_a_name_is_needed(kind: type[Record]) -> None:
    with pytest.raises(ValueError, match="needs a name"):
        kind(name="")


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


@given(steps())
def test_a_fingerprint_tells_traced_steps_apart_by_how_they_launch(step: Step) -> None:
    def changed(launch: Launch | None, **changes: object) -> Step:
        first, *rest = step.kernels
        first = msgspec.structs.replace(first, launch=launch)
        return msgspec.structs.replace(step, kernels=(first, *rest), **changes)

    launch = Launch(function="void f()", identity="1")
    wider = msgspec.structs.replace(launch, grid=(2, 1, 1))

    assert len({changed(some).fingerprint for some in (None, launch, wider)}) == 3
    told = changed(launch, source=_SOURCE, obstacle="it waits", warnings=("take care",))
    assert told.fingerprint == changed(launch).fingerprint


@given(step=steps(), traced=st.booleans())
def test_a_traced_step_comes_back_from_its_file(*, step: Step, traced: bool) -> None:
    launch = Launch(
        function="void f<int>()",
        grid=(7, 1, 2),
        shapes="bf16[2, 3]",
        served_by=("memset",),
        identity="1",
    )
    kernels = tuple(
        msgspec.structs.replace(k, launch=launch if traced else None) for k in step.kernels
    )
    told = msgspec.structs.replace(
        step, kernels=kernels, source=_SOURCE, obstacle="it waits", warnings=("hot",)
    )

    assert msgspec.json.decode(msgspec.json.encode(told), type=Step) == told


@pytest.mark.parametrize("work", [{"flops": 1e19}, {"bytes_moved": 1e16}])
def test_a_launch_that_no_gpu_ends_is_refused(work: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="of one launch is 1e"):
        Kernel(name="k", **work)  # type: ignore[arg-type]


def test_an_arm_has_all_of_its_cost_or_none() -> None:
    feasible = Arm.of(Strategy.PASS, COST, Status.OPTIMAL, gap=0.0)
    infeasible = Arm.of(Strategy.PASS, None, Status.INFEASIBLE)

    assert feasible.cost == COST
    assert (feasible.time_s, feasible.energy_change) == (COST.time_s, COST.energy_change)
    assert infeasible.cost is None
    assert infeasible.gap is None
    for field in ("time_s", "energy_j", "time_change", "energy_change"):
        assert getattr(infeasible, field) is None
        with pytest.raises(ValueError, match="3 of 4 costs"):
            msgspec.structs.replace(feasible, **{field: None})


AUTO_ARM = Arm.of(
    Strategy.AUTO,
    Cost(time_s=1.0, energy_j=100.0, time_change=0.0, energy_change=0.0),
    Status.BASELINE,
)
BEST_ARM = Arm.of(Strategy.KERNEL_GLOBAL, COST, Status.OPTIMAL, gap=0.0)
_ACHIEVABLE_ARM = Arm.of(Strategy.ACHIEVABLE, COST, Status.BOUNDED, gap=0.01)
_TWO_LAUNCHES = ClockSchedule(
    segments=(Segment(launches=2, core_mhz=900, mem_mhz=None),),
    switches=0,
    latency="6ms",
    latencies=LatencyTable.constant(0.006),
    launch_s=(0.01,) * 2,
)


def plan(*arms: Arm, **parts: object) -> Plan:
    cleared = dict.fromkeys(("fingerprint", "fixed", "bound", "closure"))
    usual: dict[str, object] = {"chosen": "kernel_global", "kernels": {}, "frontier": (), **cleared}
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
        (Arm.of(Strategy.PASS, COST, Status.OPTIMAL, gap=0.0),),
        (Arm.of(Strategy.KERNEL_GLOBAL, None, Status.INFEASIBLE),),
    ],
    ids=["no arm", "another arm", "infeasible"],
)
def test_a_plan_without_costs_for_its_chosen_arm_is_refused(arms: tuple[Arm, ...]) -> None:
    with pytest.raises(ValueError, match="'kernel_global' has no costs"):
        plan(*arms)


def test_a_plan_without_auto_is_refused() -> None:
    with pytest.raises(ValueError, match="'auto' has no costs"):
        plan(BEST_ARM)


def _choice(core_mhz: int | None = 900) -> Choice:
    return Choice(
        core_mhz=core_mhz,
        mem_mhz=None,
        time_change=0.0,
        energy_change=0.0,
        auto_time_s=1.0,
        auto_energy_j=1.0,
    )


_RUNS = (Kernel(name="a", count=2), Kernel(name="b"))
_WHOLE: dict[str, object] = {
    "runs": _RUNS,
    "kernels": {"a": _choice(), "b": _choice()},
    "order": (0, 1, 0),
}


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"kernels": {"a": _choice()}}, "no clocks for 'b', which it runs"),
        ({"runs": _RUNS[:1]}, "clocks for 'b', which it lacks"),
        ({"runs": (_RUNS[0], _RUNS[0])}, "lists 'a' 2 times"),
        ({"order": (0, 1, 2)}, "names kernel 2, but 2 are listed"),
        ({"order": (0, 1, -1)}, "names kernel -1, but 2 are listed"),
        ({"order": (0, 1)}, "'a' has count 2 but is launched 1 x"),
        ({"baseline": Clocks(core_mhz=2**32 + 1740)}, "core_mhz must be from 10 to 20000 MHz"),
        ({"fixed": Clocks(mem_mhz=1)}, "mem_mhz must be from 10 to 20000 MHz"),
        (
            {"schedule": _TWO_LAUNCHES, "chosen": Strategy.ACHIEVABLE},
            "the schedule is of 2 launches, the step of 3",
        ),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(parts: dict[str, object], sentence: str) -> None:
    assert plan(AUTO_ARM, BEST_ARM, **_WHOLE).order == (0, 1, 0)

    with pytest.raises(ValueError, match=sentence):
        plan(AUTO_ARM, BEST_ARM, _ACHIEVABLE_ARM, **_WHOLE | parts)


@pytest.mark.parametrize("bad", [0, -210, 9, 20_001, 2**32 + 1740])
def test_clocks_that_no_gpu_has_are_not_planned(bad: int) -> None:
    for made in (
        lambda: _choice(bad),
        lambda: Segment(launches=1, core_mhz=None, mem_mhz=bad),
    ):
        with pytest.raises(ValueError, match=r"_mhz must be from 10 to 20000 MHz, got"):
            made()


@pytest.mark.parametrize(
    ("energies_j", "sentence"),
    [((1.0,), "2 launches have 1 energies"), ((1.0, -1.0), "every launch_j must be positive")],
)
def test_every_launch_of_a_schedule_has_an_energy_or_none_has(
    energies_j: tuple[float, ...], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        ClockSchedule(
            segments=(Segment(launches=2, core_mhz=900, mem_mhz=None),),
            switches=0,
            latency="6ms",
            latencies=LatencyTable.constant(0.006),
            launch_s=(0.01,) * 2,
            launch_j=energies_j,
        )


@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf])
def test_a_gap_is_a_distance(bad: float) -> None:
    with pytest.raises(ValueError, match="gap must be finite and not negative"):
        Arm.of(Strategy.PASS, COST, Status.OPTIMAL, gap=bad)
    with pytest.raises(ValueError, match="gap must be finite and not negative"):
        LatencyPoint(latency_s=1e-3, time_change=0.0, energy_change=0.0, switches=1, gap=bad)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"window_s": 0.0}, "positive length"),
        ({"window_s": math.inf}, "positive length"),
        ({"launches": 0}, "at least one launch"),
        ({"warm_s": -1.0}, "not be negative|not negative"),
        ({"kernel_warm_s": math.inf}, "finite"),
        ({"steady_s": 0.0}, "steady_s must be positive"),
    ],
)
def test_settings_that_measure_nothing_are_refused(parts: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        MeasurementSettings(**parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("warm_s", "longest_warm_s", "least_s"),
    [(100.0, 600.0, 100.0), (90.0, 600.0, 100.0), (0.0, 600.0, 20.0), (100.0, 30.0, 40.0)],
)
def test_warming_up_takes_whole_looks_at_the_temperature(
    warm_s: float, longest_warm_s: float, least_s: float
) -> None:
    settings = MeasurementSettings(warm_s=warm_s, longest_warm_s=longest_warm_s)

    assert settings.least_warm_s == least_s


def test_boards_differ_only_where_both_are_known() -> None:
    one, two, unknown = (GpuInfo(name="g", uuid=uuid) for uuid in ("GPU-1", "GPU-2", None))

    assert one.is_another_board(two)
    assert not one.is_another_board(one)
    assert not one.is_another_board(unknown)
    assert not unknown.is_another_board(one)


@pytest.mark.parametrize("kind", [Clocks, Kernel, Launch, Step, Window, Plan])
def test_a_record_refuses_fields_it_does_not_know(kind: type[Record]) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `surprise`"):
        msgspec.json.decode(b'{"surprise": 1}', type=kind)


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
    "changes", [{"file": ""}, {"function": ""}, {"function": "a b"}, {"sha256": "abc"}]
)
def test_a_source_names_a_file_a_function_and_a_hash(changes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"source needs|64 hexadecimal"):
        msgspec.structs.replace(_SOURCE, **changes)
    assert str(_SOURCE) == "train.py:step"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"after": (0, 2)}, "must be positive and ascend"),
        ({"after": (2, 2)}, "must be positive and ascend"),
        ({"after": (2, 1), "hot": 2}, "must be positive and ascend"),
        ({"after": (1, 2), "hot": 3}, "3 heaters do not make 2 pieces that are alike"),
    ],
)
def test_coload_in_pieces_that_cannot_be_is_refused(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Mix(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel_mhz", [(1700.0,), (1700.0, 0.0), (1700.0, math.inf)])
def test_clocks_of_a_steps_kernels_are_one_for_each(kernel_mhz: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="kernel_mhz"):
        Window(
            kernel="",
            mix=Mix(),
            core_mhz=1700.0,
            core_spread_mhz=0.0,
            time_s=1.0,
            energy_j=1.0,
            kernel_s=(0.1, 0.2),
            kernel_mhz=kernel_mhz,
            window_s=1.0,
        )


@pytest.mark.parametrize("range_s", [(0.15, 6e-3), (-1.0, 0.1), (0.1, 0.1)])
def test_a_range_of_latencies_ascends(range_s: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="must ascend"):
        with_plan(latency_range_s=range_s)
