"""Records: what each refuses, and what it says of itself."""

import hashlib
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.records import (
    AUTO,
    Aggregate,
    Arm,
    Choice,
    Clocks,
    Cost,
    Evidence,
    GpuInfo,
    Granularity,
    Kernel,
    Launch,
    Objective,
    Pass,
    Plan,
    Record,
    Sample,
    Status,
    Step,
    Strategy,
    Utilisation,
)
from underclock.workloads import workload

NO_QUANTITY = [0, -1, -0.5, math.nan, math.inf, -math.inf]
mhz = st.none() | st.integers(1, 20_000)
clocks = st.builds(Clocks, core_mhz=mhz, mem_mhz=mhz)
COST = Cost(time_s=1.0, energy_j=100.0, time_change=0.0, energy_change=-0.1)


@pytest.mark.parametrize("bad", NO_QUANTITY)
@pytest.mark.parametrize(
    ("kind", "field", "given"),
    [
        (Clocks, "core_mhz", {}),
        (Clocks, "mem_mhz", {}),
        (Kernel, "count", {"name": "k"}),
        (Kernel, "bytes_moved", {"name": "k"}),
        (GpuInfo, "power_limit_w", {"name": "g"}),
        (Sample, "time_s", {"kernel": "k", "energy_j": 1.0}),
        (Sample, "energy_j", {"kernel": "k", "time_s": 1.0}),
        (Sample, "window_s", {"kernel": "k", "time_s": 1.0, "energy_j": 1.0}),
    ],
)
def test_a_quantity_that_is_not_positive_and_finite_is_refused_by_name(
    kind: type[Record], field: str, given: dict[str, object], bad: float
) -> None:
    with pytest.raises(ValueError, match=f"{field} must be positive and finite"):
        kind(**given, **{field: bad})


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_flops_may_be_zero_but_not_negative_or_infinite(bad: float) -> None:
    assert Kernel(name="copy", flops=0.0).flops == 0.0
    with pytest.raises(ValueError, match="flops"):
        Kernel(name="copy", flops=bad)


def test_a_repeat_counts_from_zero() -> None:
    assert Sample(kernel="k", repeat=0, time_s=1.0, energy_j=1.0).repeat == 0
    with pytest.raises(ValueError, match="repeat"):
        Sample(kernel="k", repeat=-1, time_s=1.0, energy_j=1.0)


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


@given(clocks)
def test_clocks_say_what_is_held_and_what_is_auto(setting: Clocks) -> None:
    core, mem = str(setting).removeprefix("core ").split(", memory ")

    assert core == ("auto" if setting.core_mhz is None else f"{setting.core_mhz} MHz")
    assert mem == ("auto" if setting.mem_mhz is None else f"{setting.mem_mhz} MHz")
    assert setting.is_auto == (setting == AUTO)


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
    with pytest.raises(ValueError, match="not listed"):
        rebuilt(order=[*step.order, len(step.kernels)])
    with pytest.raises(ValueError, match="not listed"):
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


@given(steps())
def test_a_step_never_traced_keeps_the_fingerprint_it_had_before_tracing(step: Step) -> None:
    # The rule of then, when a kernel had these fields and no more.
    fields = "name", "kind", "pass", "section", "shape", "count", "flops", "bytes_moved"
    listed = msgspec.to_builtins(step.kernels)
    body = msgspec.json.encode(
        [[{field: kernel[field] for field in fields} for kernel in listed], step.order]
    )

    assert step.fingerprint == hashlib.sha256(body).hexdigest()[:16]


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
    told = changed(launch, source="train.py:step", obstacle="it waits", warnings=("take care",))
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
        step, kernels=kernels, source="train.py:step", obstacle="it waits", warnings=("hot",)
    )

    assert msgspec.json.decode(msgspec.json.encode(told), type=Step) == told


def test_a_step_file_from_before_tracing_is_read() -> None:
    body = b'{"name":"s","kernels":[{"name":"k","kind":"gemm","pass":"forward"}],"order":[0]}'

    found = msgspec.json.decode(body, type=Step)

    assert (found.source, found.obstacle, found.warnings) == ("", "", ())
    assert found.kernels[0].launch is None


@pytest.mark.parametrize("part", ["sm", "tensor", "fp32", "dram"])
def test_utilisation_is_a_fraction_that_may_overshoot_a_little(part: str) -> None:
    def made(value: float) -> Utilisation:
        return Utilisation(**dict.fromkeys(("sm", "tensor", "fp32", "dram"), 0.5) | {part: value})

    assert [getattr(made(value), part) for value in (0.0, 1.0, 1.1)] == [0.0, 1.0, 1.1]
    for bad in (-0.01, 1.11, 50.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"{part} must be a fraction"):
            made(bad)


def test_a_pass_is_called_pass_in_files() -> None:
    assert b'"pass":"forward"' in msgspec.json.encode(Kernel(name="k", pass_=Pass.FORWARD))


@given(
    st.builds(
        Choice, core_mhz=mhz, mem_mhz=mhz, time_change=st.just(0.0), energy_change=st.just(0.0)
    )
)
def test_a_choice_gives_its_clocks(choice: Choice) -> None:
    assert (choice.clocks.core_mhz, choice.clocks.mem_mhz) == (choice.core_mhz, choice.mem_mhz)


def test_an_arm_has_all_of_its_cost_or_none() -> None:
    feasible = Arm.of(Strategy.PASS, COST, Status.OPTIMAL, gap=0.0)
    infeasible = Arm.of(Strategy.PASS, None, Status.INFEASIBLE)

    assert feasible.cost == COST
    assert (feasible.time_s, feasible.energy_change) == (COST.time_s, COST.energy_change)
    assert infeasible.cost is None
    assert infeasible.gap is None
    for field in ("time_s", "energy_j", "time_change", "energy_change"):
        assert getattr(infeasible, field) is None
        assert msgspec.structs.replace(feasible, **{field: None}).cost is None


def plan(*arms: Arm, chosen: Strategy = Strategy.KERNEL_GLOBAL) -> Plan:
    return Plan(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="g"),
        workload="w",
        objective=Objective.WASTE,
        max_slowdown=0.0,
        granularity=Granularity.KERNEL,
        aggregate=Aggregate.GLOBAL,
        baseline=AUTO,
        chosen=chosen,
        arms=arms,
        kernels={},
        fixed=None,
    )


def test_a_strategy_nobody_knows_is_refused() -> None:
    body = msgspec.json.encode(Arm.of(Strategy.PASS, COST, Status.OPTIMAL))
    assert msgspec.json.decode(body, type=Arm).name is Strategy.PASS
    with pytest.raises(msgspec.ValidationError, match="luck"):
        msgspec.json.decode(body.replace(b'"pass"', b'"luck"'), type=Arm)


def test_a_plan_promises_what_its_chosen_arm_costs() -> None:
    auto = Arm.of(
        Strategy.AUTO,
        Cost(time_s=2.0, energy_j=2.0, time_change=0.0, energy_change=0.0),
        Status.BASELINE,
    )
    best = Arm.of(Strategy.KERNEL_GLOBAL, COST, Status.OPTIMAL, gap=0.0)

    made = plan(auto, best)

    assert made.promise == COST
    assert made.arm(Strategy.AUTO) == auto
    with pytest.raises(KeyError, match="pass"):
        made.arm(Strategy.PASS)


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


def test_records_cannot_be_changed_and_are_built_by_keyword() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        AUTO.core_mhz = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        Clocks(1)  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [Clocks, Kernel, Launch, Step, Sample, Utilisation, Plan])
def test_a_record_refuses_fields_it_does_not_know(kind: type[Record]) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `surprise`"):
        msgspec.json.decode(b'{"surprise": 1}', type=kind)
