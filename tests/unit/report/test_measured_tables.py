"""Terminal tables of what was observed. The numbers are invented, for tests only."""

import io

import msgspec
import pytest
from rich.console import Console
from rich.table import Table

from underclock.records import Evidence, GpuInfo
from underclock.records.observed import (
    Bound,
    Breakdown,
    Exponent,
    Follows,
    KernelPart,
    Share,
    StepClock,
)
from underclock.report import breakdown_tables

NAME = "[bold]ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nt[/bold]" * 2
GPU = GpuInfo(name="NVIDIA H200")


def share(name: str, energy_share: float = 1.0) -> Share:
    return Share(
        name=name,
        launches=4321,
        time_s=0.5 * energy_share,
        energy_j=200.0 * energy_share,
        time_share=energy_share,
        energy_share=energy_share,
    )


EXPONENT = Exponent(value=0.857, error=0.012, points=5, least_mhz=1498.0, most_mhz=1980.0)


def part(kernel: str, **changes: object) -> KernelPart:
    usual = KernelPart(
        kernel=kernel,
        launches=12,
        energy_j=200.0,
        energy_share=0.4321,
        follows=Follows.CORE,
        exponent=EXPONENT,
        bound=Bound.DRAM,
        in_step_change=0.1412,
    )
    return msgspec.structs.replace(usual, **changes)


UNTIMED = {"exponent": None, "in_step_change": None, "follows": Follows.UNMEASURED}


FOUND = Breakdown(
    evidence=Evidence.MEASURED,
    gpu=GPU,
    workload="train",
    time_s=0.5,
    energy_j=200.0,
    by_pass=(share("backward", 0.75), share("forward", 0.25)),
    by_operator=(share(NAME),),
    by_bound=(share("tensor"),),
    kernels=(part(NAME),),
    reachable_j=30.0,
    undecided_j=0.0,
    step_clock=StepClock(core_mhz=1749.3, spread_mhz=41.2),
    capped_share=0.25,
    closure=None,
)


def seen(*tables: Table) -> str:
    """Return what an 80-column terminal shows."""
    console = Console(file=(out := io.StringIO()), width=80)
    for table in tables:
        console.print(table)
    text = out.getvalue()
    assert max(len(line) for line in text.splitlines()) <= 80
    return text


def with_found(**changes: object) -> str:
    return " ".join(seen(*breakdown_tables(msgspec.structs.replace(FOUND, **changes))).split())


def test_a_breakdown_is_four_tables_under_one_heading() -> None:
    tables = breakdown_tables(FOUND)
    text = seen(*tables)

    assert len(tables) == 4
    assert text.count("train on NVIDIA H200 at auto clocks: measured") == 1
    assert text.index("by pass") < text.index("by operator") < text.index("by what bounds")
    assert "how time follows the core clock" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["backward", "4321", "375", "ms", "150", "J", "75.0%", "75.0%"] in rows


def test_a_name_is_shown_whole_and_is_no_markup() -> None:
    assert NAME in "".join(seen(breakdown_tables(FOUND)[1]).split()).replace(
        "4321500ms200J100.0%100.0%", ""
    )


@pytest.mark.parametrize(("operators", "more"), [(12, None), (13, 1), (40, 28)])
def test_only_the_twelve_costliest_operators_are_shown_and_the_rest_counted(
    operators: int, more: int | None
) -> None:
    parts = tuple(share(f"aten::op{n:02d}", 1 / operators) for n in range(operators))
    text = with_found(by_operator=parts)

    assert text.count("aten::op") == 12
    assert ("with less energy" in text) == (more is not None)
    if more is not None:
        assert f"and {more} more, with less energy" in text


def test_a_kernel_shows_its_exponent_and_what_the_step_does_to_it() -> None:
    text = with_found()

    assert "43.2% 0.86 ± 0.01 1498-1980 +14.1 %" in text
    assert "43.2% 0.86 ± 0.01 1498-1980 \N{EN DASH}" in with_found(
        kernels=(part("a", in_step_change=None),)
    )
    only_timed = with_found(kernels=(part("a", exponent=None, in_step_change=-0.125),))
    assert "43.2% \N{EN DASH} \N{EN DASH} -12.5 %" in only_timed


def test_only_the_twelve_costliest_kernels_are_shown() -> None:
    text = with_found(kernels=tuple(part(f"kernel{n:02d}") for n in range(20)))

    assert text.count("kernel0") + text.count("kernel1") == 12


def test_where_nothing_follows_there_is_no_table_of_it() -> None:
    assert (
        len(breakdown_tables(msgspec.structs.replace(FOUND, kernels=(part("a", **UNTIMED),)))) == 3
    )


def test_what_does_not_follow_the_core_clock_is_a_share_of_the_energy() -> None:
    text = with_found()

    assert "the step runs at 1749 ± 41 MHz" in text
    assert "15.0% of its energy goes to kernels whose time does not follow the core clock" in text
    assert "not known" not in text
    assert "it is not known of kernels with 5.0%" in with_found(undecided_j=10.0)
    assert "alone, kernels spend 25% of their time at the power cap" in text


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"reachable_j": None, "kernels": (part("a", **UNTIMED),)},
            "at the clocks of kernels alone",
        ),
        (
            {"reachable_j": None, "kernels": (part("a", **UNTIMED, bound=Bound.UNKNOWN),)},
            "no counters were read, nor times at other core clocks",
        ),
        ({"step_clock": None}, "at which core clock the step runs is unknown"),
        ({"step_clock": StepClock(core_mhz=1890.0, spread_mhz=None)}, "as glimpsed at the end"),
    ],
)
def test_what_is_unknown_is_not_shown_as_nothing(changes: dict[str, object], sentence: str) -> None:
    text = with_found(**changes)

    assert sentence in text
    assert ("% of its energy" in text) == (changes.get("reachable_j", 30.0) is not None)
    assert "alone, kernels spend 25% of their time at the power cap" in text
