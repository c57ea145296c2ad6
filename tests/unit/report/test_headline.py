"""What a plan answers first, in the terminal and on the page."""

import msgspec
import pytest

from invented import (
    ARMS,
    LATENCY_PLAN,
    MINUS,
    Seen,
    choices,
    cost,
    page_data,
    page_table,
    printed,
    with_plan,
)
from underclock.records import (
    AUTO,
    Accounting,
    Arm,
    Clocks,
    Evidence,
    Kernel,
    Plan,
    Segment,
    Status,
    Strategy,
)
from underclock.report import page, plan_tables
from underclock.report.answer import doubt_sentence, headline


def test_where_a_latency_is_given_the_headline_is_what_is_achievable() -> None:
    text = Seen(page(LATENCY_PLAN, None)).text

    assert text.startswith(f"{MINUS}5.12 % energy at {MINUS}0.10 % time, simulated on")
    assert "achievable with a latency of 20ms, assumed, 2 changes of clocks per step" in text
    assert f"With free switching, a bound: {MINUS}15.64 % energy at +0.00 % time" in text


def test_where_a_latency_leaves_no_saving_the_headline_says_so() -> None:
    arms = (*ARMS, Arm.of(Strategy.ACHIEVABLE, cost(0.0, 0.0), Status.OPTIMAL, 0.0))

    text = Seen(page(msgspec.structs.replace(LATENCY_PLAN, arms=arms), None)).text

    assert text.startswith("No saving to promise, simulated on")
    assert "No saving is achievable with a latency of 20ms, assumed." in text
    assert f"With free switching, a bound: {MINUS}15.64 % energy" in text
    assert f"Energy at +0.50 % time {MINUS}" in text
    assert "Energy, promised" not in text
    assert f"{MINUS}1.13 % energy at {MINUS}0.04 % time: use that" in text


@pytest.mark.parametrize("accounting", Accounting)
def test_the_headline_says_what_its_numbers_are_sums_of(accounting: Accounting) -> None:
    plan = with_plan(accounting=accounting)
    words = {
        Accounting.STEP: "the step as it runs under its power cap",
        Accounting.ISOLATED: "kernels measured alone, as in arXiv 2601.08539",
    }

    assert Seen(page(plan, None)).text.split(" Underclock plan for")[0].endswith(words[accounting])
    (first, *_) = plan_tables(plan)
    assert words[accounting] in " ".join(printed(first).split())


def test_a_terminal_gives_the_answer_before_the_tables() -> None:
    said = " ".join("".join(printed(part) for part in plan_tables(LATENCY_PLAN)).split())

    assert said.startswith("-5.12 % energy at -0.10 % time, simulated on NVIDIA")
    assert said.index("promises -5.12 %") < said.index("clocks chosen")
    bound = "With free switching, a bound: -15.64 % energy at +0.00 % time (kernel, global)."
    assert said.index(bound) < said.index("clocks chosen")
    assert "a bound: free switching" in said.split("clocks chosen")[1]
    assert "* achievable here" in said
    assert "top savings of a step: simulated" in said


def measured(**changes: object) -> Plan:
    return msgspec.structs.replace(LATENCY_PLAN, evidence=Evidence.MEASURED, **changes)


def shown(plan: Plan) -> str:
    return " ".join("".join(printed(part) for part in plan_tables(plan)).split())


def test_clocks_of_a_simulated_gpu_are_not_for_the_reader_s_own() -> None:
    assert "sudo" in shown(measured())
    assert "sudo" not in shown(LATENCY_PLAN) + page(LATENCY_PLAN, None)


def unsure(arm: Arm) -> Arm:
    return msgspec.structs.replace(arm, time_interval=(-0.5, 0.5), energy_interval=(-0.25, 0.13))


def test_what_may_save_nothing_is_no_answer_yet_and_is_not_to_be_held() -> None:
    arms = [arm if arm.name is Strategy.AUTO else unsure(arm) for arm in measured().arms]
    plan = measured(arms=tuple(arms))

    assert headline(plan).startswith("Cannot tell yet: energy changes by -25.00 to +13.00 %")
    assert "sudo" not in shown(plan) + page(plan, None)
    assert "which may be nothing: -25.00 to +13.00 %" in shown(plan)
    assert "with a longer --time-limit" in (doubt_sentence(plan) or "")


def nothing_plan(**changes: object) -> Plan:
    """Return a plan that sets nothing, and in which nothing changes anything."""
    same = msgspec.structs.replace(choices(2)["kernel0"], energy_change=0.0, time_change=0.0)
    arms = tuple(Arm.of(arm.name, cost(0.0, 0.0), arm.status, arm.gap) for arm in ARMS)
    line = (cost(0.0, 0.0), cost(0.01, -0.1), cost(0.4, -0.27))
    usual: dict[str, object] = {"kernels": {"a": same}, "arms": arms, "frontier": line}
    return with_plan(fixed=AUTO, **usual | changes)


def test_nothing_is_never_a_page_of_zeros() -> None:
    for plan in (nothing_plan(), nothing_plan(arms=(*nothing_plan().arms, *ZERO_ACHIEVABLE))):
        seen = Seen(page(plan, None)).text
        said = " ".join("".join(printed(part) for part in plan_tables(plan)).split())

        assert "What was compared No way of choosing clocks changes time or energy" in seen
        tiles = (("0.50", "5.00"), ("1.00", "10.00"), ("2.00", "10.44"))
        for slowdown, change in tiles:
            assert f"Energy at +{slowdown} % time {MINUS}{change} % expected, with free" in seen
            assert f"+{slowdown} % -{change} %" in said
        assert "+0.00 % 12.3 s +0.00 %" not in seen  # no row of zeros
        assert "clocks chosen" not in said


ZERO_ACHIEVABLE = (Arm.of(Strategy.ACHIEVABLE, cost(0.0, 0.0), Status.OPTIMAL, 0.0),)


def test_a_fixed_clock_that_saves_as_much_is_recommended() -> None:
    fixed = Arm.of(Strategy.BEST_FIXED, cost(-0.001, -0.0505), Status.OPTIMAL, 0.0)
    plan = measured(arms=(ARMS[0], fixed, *LATENCY_PLAN.arms[2:]))
    sentence = "-5.05 % energy at -0.10 % time, as good as -5.12 % within 0.1 points: use that"

    html = page(plan, None)

    assert sentence.replace("-", MINUS) in Seen(html).text
    assert (
        "<pre>sudo nvidia-smi -i 0 -lgc 1680,1680\nsudo nvidia-smi -i 0 -lmc 9251,9251</pre>"
        in html
    )
    assert sentence in " ".join("".join(printed(p) for p in plan_tables(plan)).split())
    assert "use that" not in page(LATENCY_PLAN, None)


@pytest.mark.parametrize(
    ("fixed", "wanted", "unwanted"),
    [
        (Clocks(core_mhz=1680), "-rgc", "-lmc"),
        (Clocks(mem_mhz=5001), "-rmc", "-lgc"),
    ],
)
def test_a_clock_left_to_the_driver_is_not_set(fixed: Clocks, wanted: str, unwanted: str) -> None:
    text = page(with_plan(fixed=fixed, evidence=Evidence.MEASURED), None)

    assert f"To undo: <code>sudo nvidia-smi -i 0 {wanted}</code>" in text
    assert unwanted not in text


def test_the_slider_follows_what_is_achievable_where_a_latency_is_given() -> None:
    line = (cost(-0.001, -0.0512), cost(0.01, -0.07), cost(0.02, -0.08))
    text = page(msgspec.structs.replace(LATENCY_PLAN, achievable_frontier=line), None)

    data = page_data(text)
    assert data["lines"][1] == [
        "20 ms, of the plan",
        [[-0.001, -0.0512], [0.01, -0.07], [0.02, -0.08]],
    ]
    first = text.split("<polyline points=")[1].split("/>")[0]
    assert first.count(",") == len(line)
    assert 'name="latency" min="0" max="1" step="1" value="1"' in text  # what is achievable
    assert 'name="budget" min="-0.03" max="0.05" step="0.0001" value="-0.001"' in text


def test_a_page_shows_the_clocks_over_a_step_and_which_kernels_run_at_them() -> None:
    runs = (Kernel(name="product", count=6), Kernel(name="copy", count=3), Kernel(name="sum"))
    held = (("product", -71.0 / 80.0), ("copy", 0.0), ("sum", 0.0))
    kernels = {
        name: msgspec.structs.replace(each, energy_change=change)
        for (name, change), each in zip(held, choices(3).values(), strict=True)
    }
    segments = (
        Segment(launches=4, core_mhz=1680, mem_mhz=None),
        Segment(launches=4, core_mhz=900, mem_mhz=None),
        Segment(launches=2, core_mhz=None, mem_mhz=None),
    )
    assert LATENCY_PLAN.schedule is not None
    schedule = msgspec.structs.replace(
        LATENCY_PLAN.schedule,
        segments=segments,
        switches=3,
        launch_s=(0.02, *[0.01] * 9),
        launch_j=(4.0, *[1.0] * 9),
    )
    plan = msgspec.structs.replace(
        LATENCY_PLAN,
        runs=runs,
        kernels=kernels,
        order=(0, 0, 0, 0, 0, 1, 1, 2, 1, 0),
        schedule=schedule,
    )
    text = page(plan, None)

    first, second, third = page_table(text, "segments")
    assert (first["core_mhz"], second["core_mhz"], third["core_mhz"]) == (1680, 900, None)
    assert (first["time_s"], first["energy_j"]) == (0.05, 7.0)
    assert second["kernels"] == [("copy", 2), ("product", 1), ("sum", 1)]  # most time first
    by_name = {row["kernel"]: row for row in page_table(text, "kernels")}
    # What the schedule takes of it, not what free switching would.
    assert by_name["product"]["saved_j"] == pytest.approx(80.0 - 4.0 - 5.0)
    assert by_name["copy"]["core_mhz"] is None  # auto for one of its runs
    assert by_name["sum"]["core_mhz"] == 900
    planned, auto = page_data(text)["bands"]
    assert planned["title"].startswith("Under the plan: ")
    assert auto["title"] == "At auto: 12.3 s, 4.21 kJ"
    assert planned["tracks"][0]["states"][3].count(0) == 2
    assert set(auto["tracks"][0]["states"][3]) == {0}
    assert [label for label, *_ in auto["tracks"][0]["groups"]] == ["pass"]
