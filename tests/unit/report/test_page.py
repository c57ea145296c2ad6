"""The page of a plan: whole, small, safe, and honest about what is known."""

import subprocess
import sys

import msgspec
import pytest

from invented import (
    ARMS,
    ELLIPSIS,
    GPU,
    LATENCY_PLAN,
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
    Kernel,
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


def test_the_headline_says_what_is_saved_at_what_time() -> None:
    text = Seen(page(PLAN, None)).text

    saved = f"{MINUS}15.64 % energy at +0.00 % time with free switching, a bound"
    assert f"{saved}, simulated on NVIDIA GeForce RTX 3080 Ti" in text
    assert "taken as free, so this is a bound" in text


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


def test_a_page_is_small() -> None:
    line = tuple(cost(0.002 * n, -0.3 * n / (n + 20.0)) for n in range(200))

    text = page(with_plan(frontier=line), VALIDATION)

    assert len(text.encode()) < 150_000


def test_a_plan_of_one_kernel_has_a_page() -> None:
    plan = with_plan(kernels={"gemm": choices(2)["kernel1"]}, frontier=(cost(0.0, 0.0),))

    text = Seen(page(plan, None)).text

    assert "The one kernel" in text
    assert "The line is the frontier" not in text


@pytest.mark.untraced
def test_a_plan_of_a_thousand_kernels_draws_few_bars_and_says_what_the_others_draw() -> None:
    text = page(with_plan(kernels=choices(1000)), None)

    assert text.count("<rect") <= 2 * 2 * 14  # two each of a wide and a narrow drawing
    assert "988 others" in text
    assert len(page_table(text, "kernels")) == 1000
    assert len(text.encode()) < 150_000


@pytest.mark.untraced
def test_of_more_kernels_than_a_page_lists_the_others_are_one_row_and_that_is_said() -> None:
    text = page(with_plan(kernels=choices(10_050)), None)

    rows = page_table(text, "kernels")
    assert len(rows) == 10_001
    assert rows[-1]["kernel"] == "50 others, each of which draws less"
    assert rows[-1]["auto_j"] == pytest.approx(50 * 80.0)
    assert "All 10050 kernels, 10000 of them one by one" in text


def test_the_kernels_drawn_take_most_of_the_step() -> None:
    kernels = {
        name: msgspec.structs.replace(choice, auto_energy_j=10.0 + 5.0 * at)
        for at, (name, choice) in enumerate(choices(48).items())
    }

    names = Seen(page(with_plan(kernels=kernels), None)).words

    drawn = [name for name in kernels if names.count(name) == 2]  # wide and narrow
    assert drawn == list(kernels)[-12:]


def test_kernels_that_cost_energy_to_buy_time_are_not_drawn_as_savings() -> None:
    costly = msgspec.structs.replace(choices(2)["kernel1"], energy_change=0.5)
    plan = with_plan(kernels={"gemm": costly})

    text = page(plan, None)

    assert "80.0 J (100%), +50.00 %" in Seen(text).text
    assert 'fill="none" stroke="#0072B2"' not in text.split("Where the energy goes")[1]
    assert page_table(text, "kernels")[0]["saved_j"] == -40.0
    assert len(plan_tables(plan)) == len(plan_tables(PLAN)) - 1  # no table of savings


def test_long_names_are_cut_in_the_figure_but_not_in_the_table() -> None:
    name = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nt"

    text = page(with_plan(kernels={name: choices(2)["kernel1"]}), None)

    words = Seen(text).words
    assert words.count(name) == 1  # the wide drawing
    assert page_table(text, "kernels")[0]["kernel"] == name
    assert any(ELLIPSIS in word and word.endswith("_64x3_nt") for word in words)


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


def test_every_table_of_the_page_becomes_cards_where_it_is_narrow() -> None:
    body = page(LATENCY_PLAN, VALIDATION).split("</style>")[1].split("<script")[0]

    assert 'class="scroll' not in body
    assert body.count("<table") == body.count('class="stack"')


def test_runs_per_step_are_shown_where_known() -> None:
    name = "kernel1"
    plan = with_plan(kernels={name: choices(2)[name]}, runs=(Kernel(name=name, count=4321),))

    assert page_table(page(plan, None), "kernels")[0]["runs"] == 4321
    assert "runs" not in page_table(page(PLAN, None), "kernels")[0]


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


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("max_slowdown", "sentence"),
    [
        (None, "Time budget none: time was free"),
        (0.0, "Time budget +0.00 %: the whole step may not get slower"),
        (0.05, "Time budget +5.00 %: the whole step may be slower by that much"),
        (-0.01, "Time budget -1.00 %: the whole step must be faster by at least that much"),
    ],
)
def test_the_page_says_how_much_time_the_plan_may_take(
    max_slowdown: float | None, sentence: str
) -> None:
    assert sentence in Seen(page(with_plan(max_slowdown=max_slowdown), None)).text


def test_tables_do_not_load_jinja2() -> None:
    code = "import sys, underclock.report; print({'jinja2'} & sys.modules.keys())"

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert result.stdout == "set()\n"
