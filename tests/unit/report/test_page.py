"""The page of a plan: whole, small, safe, and honest about what is known."""

import subprocess
import sys

import msgspec
import pytest

from invented import (
    ARMS,
    GPU,
    MINUS,
    NASTY,
    PLAN,
    VALIDATION,
    Seen,
    choices,
    cost,
    page_data,
    page_table,
    with_plan,
    with_validation,
)
from underclock.records import (
    Arm,
    Evidence,
    GpuInfo,
    Status,
    Strategy,
)
from underclock.report import (
    page,
    plan_tables,
)


@pytest.mark.untraced
@pytest.mark.parametrize("evidence", Evidence)
def test_every_block_of_the_page_has_the_evidence_beside_it(evidence: Evidence) -> None:
    text = page(with_plan(evidence=evidence), with_validation(evidence=evidence))

    seen = Seen(text)
    captions = seen.count("figcaption")
    badges = sum(1 for _, attributes in seen.tags if attributes.get("class") == "badge")
    assert captions == 6
    assert badges == captions + 1 + 4 + 1  # headline, four numbers, what this rests on
    assert all(word.strip() in text for word in (f"({evidence})", f"{evidence} on {GPU.name}"))
    for other in set(Evidence) - {evidence}:
        assert f">{other}</span>" not in text


def test_a_script_in_a_name_is_text_not_a_script() -> None:
    harmless = page(PLAN, VALIDATION)
    plan = with_plan(
        workload=NASTY,
        gpu=GpuInfo(name=NASTY),
        kernels={NASTY: choices(2)["kernel1"]},
        warnings=(NASTY,),
    )

    text = page(plan, VALIDATION)

    assert Seen(text).count("script") == Seen(harmless).count("script")
    assert NASTY not in text
    assert page_table(text, "kernels")[0]["kernel"] == NASTY
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;</text>" in text  # the figure too


def test_the_page_loads_nothing_from_anywhere() -> None:
    seen = Seen(page(PLAN, VALIDATION))

    assert not {tag for tag, _ in seen.tags} & {"link", "img", "iframe", "object", "embed", "base"}
    assert not any({"src", "href", "srcset"} & attributes.keys() for _, attributes in seen.tags)
    assert "url(" not in seen.styles
    assert "@import" not in seen.styles
    policy = next(a["content"] for _, a in seen.tags if "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


@pytest.mark.untraced
def test_of_more_kernels_than_a_page_lists_the_others_are_one_row_and_that_is_said() -> None:
    text = page(with_plan(kernels=choices(10_050)), None)

    rows = page_table(text, "kernels")
    assert len(rows) == 10_001
    assert rows[-1]["kernel"] == "50 others, each of which draws less"
    assert rows[-1]["auto_j"] == pytest.approx(50 * 80.0)
    assert "All 10050 kernels, 10000 of them one by one" in text


def test_kernels_that_cost_energy_to_buy_time_are_not_drawn_as_savings() -> None:
    costly = msgspec.structs.replace(choices(2)["kernel1"], energy_change=0.5)
    plan = with_plan(kernels={"gemm": costly})

    text = page(plan, None)

    assert "80.0 J (100%), +50.00 %" in Seen(text).text
    assert 'fill="none" stroke="#0072B2"' not in text.split("Where the energy goes")[1]
    assert page_table(text, "kernels")[0]["saved_j"] == -40.0
    assert len(plan_tables(plan)) == len(plan_tables(PLAN)) - 1  # no table of savings


def test_numbers_of_the_slider_are_the_line_that_is_drawn() -> None:
    line = tuple(cost(0.002 * n, -0.3 * n / (n + 20.0)) for n in range(200))
    html = page(with_plan(frontier=line), None)

    ((takes, points),) = page_data(html)["lines"]
    drawn = [a["points"] for tag, a in Seen(html).tags if tag == "polyline"]

    assert takes == "no time, a bound"
    assert len(drawn) == 2
    assert all(len((each or "").split()) == len(points) for each in drawn)
    assert points[0] == [0.0, 0.0]
    assert points[-1][0] == 0.05  # as far as is drawn, between two points of the frontier
    assert [time for time, _ in points] == sorted(time for time, _ in points)
    assert f"It goes on to +39.80 % time, {MINUS}27.26 % energy." in Seen(html).text


def test_warnings_of_plan_and_validation_stand_above_the_numbers() -> None:
    both = ("the table has holes", "the GPU was throttled")

    text = Seen(page(with_plan(warnings=both[:1]), with_validation(warnings=both))).text

    assert all(text.count(warning) == 1 for warning in both)
    assert max(map(text.index, both)) < text.index("Energy, a bound")


def test_what_is_unknown_is_called_unknown() -> None:
    plan = with_plan(gpu=GpuInfo(name="RTX"), fingerprint=None, closure=None, frontier=())

    text = Seen(page(plan, None)).text

    for fact in ("Driver", "Power limit", "Step fingerprint", "Kernel launches per step"):
        assert f"{fact} unknown" in text
    assert "Closure unknown: the step was not measured as a whole." in text


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (Status.OPTIMAL, "Certificate optimal: proven that no allowed choice does better"),
        (Status.BOUNDED, "Certificate feasible, and proven to be within 0.01 % of the optimum"),
        (Status.GIVEN, "Certificate given: costed, not chosen"),
    ],
)
def test_the_page_says_what_is_proven(status: Status, sentence: str) -> None:
    chosen = Arm.of(Strategy.KERNEL_GLOBAL, cost(0.0, -0.15), status, 5e-5)

    assert sentence in Seen(page(with_plan(arms=(*ARMS[:4], chosen)), None)).text


def test_tables_do_not_load_jinja2() -> None:
    code = "import sys, underclock.report; print({'jinja2'} & sys.modules.keys())"

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert result.stdout == "set()\n"
