"""Terminal tables of what was observed. The numbers are invented, for tests only."""

import io

import msgspec
import pytest
from rich.console import Console
from rich.table import Table

from underclock.records import Evidence, GpuInfo, ThrottleReason
from underclock.records.observed import Breakdown, ClockLog, KernelClock, Share
from underclock.report import breakdown_tables, clock_log_table

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


FOUND = Breakdown(
    evidence=Evidence.MEASURED,
    gpu=GPU,
    workload="train",
    time_s=0.5,
    energy_j=200.0,
    by_pass=(share("backward", 0.75), share("forward", 0.25)),
    by_operator=(share(NAME),),
    by_bound=(share("tensor"),),
    by_clock=(share("full clock, tensor"),),
    reachable_j=30.0,
    capped_share=0.25,
    full_core_mhz=1980,
    closure=None,
)
LOG = ClockLog(
    evidence=Evidence.MEASURED,
    gpu=GPU,
    entries=10_000,
    rate_hz=998.6,
    core_mhz=(1410.0, 1755.4, 1980.0),
    power_w=(120.25, 540.0, 701.0),
    throttle_reasons=ThrottleReason(0x5),
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
    assert "by clock" in text
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


def test_what_waits_for_dram_or_latency_is_a_share_of_the_energy() -> None:
    text = with_found()

    assert "use 15.0% of the energy at the full core clock (1980 MHz)" in text
    assert "25% of the kernels' own time is at the power cap" in text


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reachable_j": None}, "no counters were read"),
        ({"reachable_j": None, "full_core_mhz": None}, "no clocks were read"),
    ],
)
def test_what_is_unknown_is_not_shown_as_nothing(changes: dict[str, object], sentence: str) -> None:
    text = with_found(**changes)

    assert sentence in text
    assert "of the energy is spent" not in text
    assert "25% of the kernels' own time is at the power cap" in text


def test_a_log_shows_its_extremes_its_rate_and_its_reasons() -> None:
    text = seen(clock_log_table(LOG))

    assert "NVIDIA H200, 10000 readings: measured" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["least", "1410", "120.2"] in rows
    assert ["mean", "1755", "540.0"] in rows
    assert ["greatest", "1980", "701.0"] in rows
    assert "999 readings a second; throttle reasons seen: 0x5" in text
    assert "a step took" not in text


def test_a_log_of_a_step_shows_every_kernel_in_order() -> None:
    kernels = tuple(
        KernelClock(kernel=name, entries=n, core_mhz=1700.0 + n, power_w=500.0)
        for n, name in enumerate(("zeta", "[red]", "alpha"), start=1)
    )
    text = seen(clock_log_table(msgspec.structs.replace(LOG, step_s=0.25, kernels=kernels)))

    assert text.index("zeta") < text.index("[red]") < text.index("alpha")
    assert ["[red]", "2", "1702", "500.0"] in [line.split() for line in text.splitlines()]
    assert "a step took 250 ms" in " ".join(text.split())
