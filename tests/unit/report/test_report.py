"""Terminal tables and the page. The numbers are invented, for tests only."""

import io
import json
import subprocess
import sys
from html.parser import HTMLParser

import msgspec
import pytest
from rich.console import Console, RenderableType

from underclock.records import (
    AUTO,
    Accounting,
    Aggregate,
    Arm,
    Choice,
    Clocks,
    ClockSchedule,
    Closure,
    Cost,
    Evidence,
    GpuInfo,
    Granularity,
    Kernel,
    LatencyPoint,
    Objective,
    OtherArm,
    Plan,
    Proposal,
    Score,
    Segment,
    Spread,
    Status,
    Strategy,
    Validation,
    Verdict,
)
from underclock.records.latencies import LatencyTable
from underclock.report import (
    arms_table,
    page,
    plan_tables,
    savings_table,
    score_table,
    validation_table,
    verdict_text,
)
from underclock.report.wording import DASH

NASTY = "<script>alert(1)</script>&"
GPU = GpuInfo(name="NVIDIA GeForce RTX 3080 Ti", driver="555.42", power_limit_w=350.0)
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
MINUS = "\N{MINUS SIGN}"


def cost(time_change: float, energy_change: float) -> Cost:
    return Cost(
        time_s=12.31 * (1.0 + time_change),
        energy_j=4212.0 * (1.0 + energy_change),
        time_change=time_change,
        energy_change=energy_change,
    )


ARMS = (
    Arm.of(Strategy.AUTO, cost(0.0, 0.0), Status.BASELINE),
    Arm.of(Strategy.BEST_FIXED, cost(-0.0004, -0.0113), Status.OPTIMAL, 0.0),
    Arm.of(Strategy.PASS, cost(-0.001, -0.0207), Status.OPTIMAL, 0.0),
    Arm.of(Strategy.KERNEL_LOCAL, cost(-0.0178, -0.1154), Status.OPTIMAL, 0.0),
    Arm.of(Strategy.KERNEL_GLOBAL, cost(-0.000001, -0.1564), Status.BOUNDED, 2e-6),
)


def choices(count: int) -> dict[str, Choice]:
    """Return so many kernels; the later, the more they save."""
    return {
        f"kernel{i}": Choice(
            core_mhz=(None, 1680)[i % 2],
            mem_mhz=(None, 5001)[i // 2 % 2],
            time_change=0.001,
            energy_change=-i / (2.0 * count),
            auto_time_s=0.25,
            auto_energy_j=80.0,
        )
        for i in range(count)
    }


PLAN = Plan(
    evidence=Evidence.SIMULATED,
    gpu=GPU,
    workload="gpt3-xl",
    fingerprint="0123456789abcdef",
    objective=Objective.WASTE,
    max_slowdown=0.0,
    granularity=Granularity.KERNEL,
    aggregate=Aggregate.GLOBAL,
    baseline=AUTO,
    chosen=Strategy.KERNEL_GLOBAL,
    arms=ARMS,
    kernels=choices(48),
    fixed=Clocks(core_mhz=1680, mem_mhz=9251),
    frontier=(cost(-0.03, -0.05), cost(0.0, -0.157), cost(0.4, -0.27)),
    closure=Closure(time=0.981, energy=1.034),
)
LATENCY_PLAN = msgspec.structs.replace(
    PLAN,
    arms=(*ARMS, Arm.of(Strategy.ACHIEVABLE, cost(-0.001, -0.0512), Status.OPTIMAL, 0.0)),
    schedule=ClockSchedule(
        segments=(
            Segment(launches=7, core_mhz=1680, mem_mhz=None),
            Segment(launches=3, core_mhz=None, mem_mhz=5001),
        ),
        switches=2,
        latency="20ms, assumed",
        latencies=LatencyTable.constant(0.02),
        launch_s=(0.01,) * 10,
    ),
    latency_curve=(
        LatencyPoint(
            latency_s=0.006,
            time_change=-0.002,
            energy_change=-0.11,
            switches=12,
            gap=0.0,
            hardware="Hopper (as cited by arXiv 2601.08539)",
        ),
        LatencyPoint(latency_s=0.5, time_change=None, energy_change=None, switches=None, gap=None),
    ),
    proposals=(
        Proposal(
            name="2 x larger micro-batches",
            needs="memory for 2 x the activations",
            time_change=0.0,
            energy_change=-0.13,
            switches=4,
        ),
    ),
)
VALIDATION = Validation(
    evidence=Evidence.MEASURED,
    gpu=GPU,
    workload="gpt3-xl",
    chosen=Strategy.KERNEL_GLOBAL,
    accounting=Accounting.STEP,
    repeats=3,
    auto_time_s=(12.30, 12.31, 12.32),
    auto_energy_j=(4210.0, 4212.0, 4214.0),
    plan_time_s=(12.36, 12.38, 12.40),
    plan_energy_j=(3590.0, 3600.0, 3610.0),
    time_change=Spread(mean=0.0057, best=0.0032, worst=0.0081),
    energy_change=Spread(mean=-0.1453, best=-0.1481, worst=-0.1425),
    promised_time_change=0.0,
    promised_energy_change=-0.1564,
    pairs_keeping_energy=0,
    pairs_keeping_time=2,
)
SCORE = Score(
    evidence=Evidence.REPLAYED,
    gpu=GPU,
    plan=Strategy.KERNEL_GLOBAL,
    time_s=12.38,
    energy_j=3600.0,
    time_change=0.006,
    energy_change=-0.1453,
    promised_time_change=0.0,
    promised_energy_change=-0.1564,
    arms=(ARMS[0], ARMS[4]),
)


def with_plan(**changes: object) -> Plan:
    return msgspec.structs.replace(PLAN, **changes)


def with_validation(**changes: object) -> Validation:
    return msgspec.structs.replace(VALIDATION, **changes)


def printed(table: RenderableType, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text()


class Seen(HTMLParser):
    """What a browser would find on a page: its tags, and its text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.styles = ""
        self._hidden: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._hidden = tag if tag in {"script", "style"} else None

    def handle_endtag(self, tag: str) -> None:
        if tag == self._hidden:
            self._hidden = None

    def handle_data(self, data: str) -> None:
        if self._hidden is None:
            self.words.append(data)
        elif self._hidden == "style":
            self.styles += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str) -> int:
        return sum(1 for found, _ in self.tags if found == tag)


@pytest.mark.parametrize("evidence", Evidence)
def test_every_terminal_table_says_how_its_numbers_are_known(evidence: Evidence) -> None:
    plan = with_plan(evidence=evidence)

    tables = (
        arms_table(plan),
        savings_table(plan),
        validation_table(with_validation(evidence=evidence)),
        score_table(msgspec.structs.replace(SCORE, evidence=evidence)),
    )

    assert all(str(evidence) in printed(table) for table in tables)


def test_the_arms_fit_an_80_column_terminal_without_losing_a_character() -> None:
    text = printed(arms_table(with_plan(fixed=Clocks(core_mhz=1680, mem_mhz=10501))))

    assert max(map(len, text.splitlines())) <= 80
    assert ELLIPSIS not in text
    assert "core 1680, mem 10501" in text
    for word in ("-15.64 %", "-1.78 %", "12.3 s", "3.55 kJ", "within 0.01 %", "best fixed clock"):
        assert word in text


def test_the_chosen_arm_alone_has_a_star() -> None:
    starred = [line for line in printed(arms_table(PLAN)).splitlines() if " * " in f" {line}"]

    assert [line.split()[1:3] for line in starred if "%" in line] == [["kernel,", "global"]]


def test_an_infeasible_arm_shows_dashes_and_no_numbers() -> None:
    arms = (ARMS[0], Arm.of(Strategy.BEST_FIXED, None, Status.INFEASIBLE), *ARMS[2:])
    plan = with_plan(arms=arms, fixed=None)

    (line,) = (t for t in printed(arms_table(plan)).splitlines() if "best fixed" in t)
    html = Seen(page(plan, None)).text

    assert line.split() == ["best", "fixed", "clock", *(DASH,) * 4, "infeasible"]
    assert f"{DASH} {DASH} {DASH} {DASH} infeasible" in html


@pytest.mark.parametrize("width", [40, 50, 60])
def test_a_narrow_terminal_shows_every_name_and_number_whole(width: int) -> None:
    text = printed(arms_table(PLAN), width)

    assert max(map(len, text.splitlines())) <= width
    rows = {line.strip(" *").split("  ")[0]: line for line in text.splitlines() if "%" in line}
    for name, energy in (
        ("auto", "+0.00 %"),
        ("best fixed clock", "-1.13 %"),
        ("pass-level", "-2.07 %"),
        ("kernel, local", "-11.54 %"),
        ("kernel, global", "-15.64 %"),
    ):
        assert energy in rows[name]


@pytest.mark.parametrize("width", [40, 50, 60, 80])
def test_a_narrow_terminal_cuts_no_word_and_no_number(width: int) -> None:
    found = with_validation(**JUDGED, others=(FIXED,))

    for part in (*plan_tables(LATENCY_PLAN), validation_table(found), score_table(SCORE)):
        narrow, wide = printed(part, width), printed(part, 200)
        assert max(map(len, narrow.splitlines())) <= width
        assert {
            word for word in narrow.split() if "\N{BOX DRAWINGS LIGHT HORIZONTAL}" not in word
        } <= set(wide.split())


def test_a_kernel_name_that_looks_like_rich_markup_is_printed_as_it_is() -> None:
    plan = with_plan(kernels={"[red]gemm[/]": choices(2)["kernel1"]})

    assert "[red]gemm[/]" in printed(savings_table(plan))


def test_savings_are_ranked_by_joules_of_the_step_and_the_rest_is_summed() -> None:
    small = msgspec.structs.replace(choices(2)["kernel1"], energy_change=-0.9, auto_energy_j=0.01)
    plan = with_plan(kernels={"tiny": small, **choices(48)})

    rows = [line.split() for line in printed(savings_table(plan)).splitlines()]

    named = [row for row in rows if row and row[0][:6] == "kernel" and row[0][6:].isdigit()]
    assert [row[0] for row in named] == [f"kernel{n}" for n in range(47, 39, -1)]
    saved = [float(row[4]) for row in named]
    rest = next(row for row in rows if row[1:2] == ["others"])
    assert rest[0] == "41"
    total = sum(choice.saved_j for choice in plan.kernels.values())
    assert sum(saved) + float(rest[2]) == pytest.approx(total, abs=0.1)


def test_a_terminal_shows_what_to_paste_for_the_best_fixed_clock() -> None:
    lines = "".join(printed(part, 40) for part in plan_tables(PLAN)).splitlines()

    assert "  sudo nvidia-smi -i 0 -lgc 1680,1680" in lines
    assert "  sudo nvidia-smi -i 0 -lmc 9251,9251" in lines


def test_a_validation_table_counts_the_pairs() -> None:
    text = printed(validation_table(VALIDATION))
    free = printed(validation_table(with_validation(pairs_keeping_time=None)))

    judged = printed(validation_table(with_validation(tolerance=0.001)))

    assert "of 9 pairs, 0 save the promised energy; 2 keep the time budget" in text
    assert "2 keep the time budget, to 0.1 points" in " ".join(judged.split())
    assert "time was free" in free


JUDGED = {
    "time_interval": (-0.0012, 0.0124),
    "energy_interval": (-0.1491, -0.1415),
    "max_slowdown": 0.0,
    "tolerance": 0.001,
}
FIXED = OtherArm(
    name=Strategy.BEST_FIXED,
    clocks=Clocks(core_mhz=1680),
    time_s=(12.1, 12.2, 12.3),
    energy_j=(4100.0, 4110.0, 4120.0),
    time_change=Spread(mean=-0.0009, best=-0.01, worst=0.01),
    energy_change=Spread(mean=-0.0242, best=-0.03, worst=-0.02),
    time_interval=(-0.02, 0.02),
    energy_interval=(-0.0301, -0.0199),
)


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"verdict": Verdict.KEPT}, "kept: energy -14.53 % (-14.91 to -14.15 %) against -15.64 %"),
        ({"verdict": Verdict.NOT_KEPT}, "not kept: energy"),
        (
            {"verdict": Verdict.INCONCLUSIVE, "further_repeats": 14},
            "inconclusive: about 14 more repeats would decide: energy",
        ),
        (
            {"verdict": Verdict.INCONCLUSIVE, "further_repeats": 1},
            "inconclusive: about 1 more repeat would decide: energy",
        ),
        (
            {"verdict": Verdict.INCONCLUSIVE},
            "inconclusive: too close to call, even with 1000 repeats: energy",
        ),
        (
            {"verdict": Verdict.INCONCLUSIVE, "time_interval": None, "energy_interval": None},
            "inconclusive: a single run of each tells no spread: energy -14.53 % (\N{EN DASH})",
        ),
    ],
)
def test_a_verdict_says_what_it_rests_on(changes: dict[str, object], start: str) -> None:
    found = with_validation(**(JUDGED | changes))
    text = verdict_text(found)

    assert text.startswith(start)
    assert text.endswith("against a budget of +0.00 %; tolerance 0.1 points")
    assert text[1:].replace("-", MINUS) in Seen(page(PLAN, found)).text


def test_a_verdict_without_a_time_budget_says_that_time_was_free() -> None:
    free = with_validation(**(JUDGED | {"verdict": Verdict.KEPT, "max_slowdown": None}))

    assert "time +0.57 % was free; tolerance" in verdict_text(free)


def test_a_validation_of_an_older_version_is_shown_without_a_verdict() -> None:
    assert verdict_text(VALIDATION).startswith("unknown")
    assert "nconclusive" not in Seen(page(PLAN, VALIDATION)).text
    assert printed(validation_table(VALIDATION)).count(DASH) == 2


def test_intervals_and_other_arms_stand_in_table_and_page() -> None:
    found = with_validation(**JUDGED, verdict=Verdict.NOT_KEPT, others=(FIXED,))
    text, html = printed(validation_table(found)), page(PLAN, found)

    assert "-14.91 to -14.15 %" in text
    assert text.count("best fixed clock,") == 2
    assert max(map(len, text.splitlines())) <= 80
    assert f"{MINUS}3.01 to {MINUS}1.99 %" in Seen(html).text
    assert "<title>best fixed clock: " in html


def test_a_score_table_without_an_auto_arm_shows_dashes() -> None:
    text = printed(score_table(msgspec.structs.replace(SCORE, arms=())))

    assert text.count(DASH) == 2


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

    assert f"{MINUS}15.64 % energy at +0.00 % time, simulated on NVIDIA GeForce RTX 3080 Ti" in text
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
    assert NASTY in Seen(text).words  # the table shows it whole
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


def test_equal_input_gives_equal_bytes() -> None:
    assert page(PLAN, VALIDATION) == page(PLAN, VALIDATION)


def test_a_page_is_small() -> None:
    line = tuple(cost(0.002 * n, -0.3 * n / (n + 20.0)) for n in range(200))

    text = page(with_plan(frontier=line), VALIDATION)

    assert len(text.encode()) < 150_000


def test_a_plan_of_one_kernel_has_a_page() -> None:
    plan = with_plan(kernels={"gemm": choices(2)["kernel1"]}, frontier=(cost(0.0, 0.0),))

    text = Seen(page(plan, None)).text

    assert "The one kernel" in text
    assert "The line is the frontier" not in text


def test_a_plan_of_a_thousand_kernels_draws_few_bars_and_says_what_the_others_save() -> None:
    text = page(with_plan(kernels=choices(1000)), None)

    assert text.count("<rect") < 2 * 20  # of a wide and a narrow drawing
    assert "984 others" in text
    assert Seen(text).count("tr") > 1000
    assert len(text.encode()) < 300_000


def test_the_first_kernels_drawn_save_most_of_the_step() -> None:
    kernels = choices(48)
    saved_j = sorted((choice.saved_j for choice in kernels.values()), reverse=True)

    names = Seen(page(with_plan(kernels=kernels), None)).words

    shown = [name for name in kernels if names.count(name) == 3]  # wide, narrow and table
    assert {kernels[name].saved_j for name in shown} == set(saved_j[: len(shown)])
    assert sum(saved_j[: len(shown)]) > 0.5 * sum(saved_j)


def test_kernels_that_cost_energy_to_buy_time_are_not_drawn_as_savings() -> None:
    costly = msgspec.structs.replace(choices(2)["kernel1"], energy_change=0.5)
    plan = with_plan(kernels={"gemm": costly})

    text = Seen(page(plan, None)).text

    assert "None: the clocks of this plan cost energy and buy time." in text
    assert f"{MINUS}40.00" in text
    assert len(plan_tables(plan)) == len(plan_tables(PLAN)) - 1  # no table of savings


def test_long_names_are_cut_in_the_figure_but_not_in_the_table() -> None:
    name = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nt"

    words = Seen(page(with_plan(kernels={name: choices(2)["kernel1"]}), None)).words

    assert words.count(name) == 2  # the wide drawing and the table
    assert any(ELLIPSIS in word and word.endswith("_64x3_nt") for word in words)


def test_a_plan_that_is_auto_draws_no_bars_and_says_what_time_would_give() -> None:
    same = msgspec.structs.replace(choices(2)["kernel0"], energy_change=0.0, time_change=0.0)
    arms = tuple(Arm.of(arm.name, cost(0.0, 0.0), arm.status, arm.gap) for arm in ARMS)
    line = (cost(0.0, 0.0), cost(0.01, -0.1), cost(0.4, -0.27))
    plan = with_plan(kernels={"a": same, "b": same}, arms=arms, frontier=line, fixed=AUTO)

    seen = Seen(page(plan, None))

    assert "No saving to promise, simulated on" in seen.text
    assert (
        f"The plan is auto: no other clocks surely save energy at \N{LESS-THAN OR EQUAL TO} 0 % "
        f"slower; at 0.5, 1 and 2 % slower about {MINUS}5.0, {MINUS}10.0 and {MINUS}10.4 % energy "
        "is expected, with free switching: a bound, not promised."
    ) in seen.text
    assert seen.count("rect") == 2  # only what is over the budget, wide and narrow
    assert "kernels-panel" not in page(plan, None).split("<script>")[0]
    assert "nvidia-smi" not in seen.text
    assert "nothing to run again" in seen.text


def test_where_a_latency_is_given_the_headline_is_what_is_achievable() -> None:
    text = Seen(page(LATENCY_PLAN, None)).text

    assert text.startswith(f"{MINUS}5.12 % energy at {MINUS}0.10 % time, simulated on")
    assert "achievable with a latency of 20ms, assumed, 2 changes of clocks per step" in text
    assert f"With free switching, a bound: {MINUS}15.64 % energy at +0.00 % time" in text
    assert "7 1680 auto 3 auto 5001" in text  # the schedule


def test_where_a_latency_leaves_no_saving_the_headline_says_so() -> None:
    arms = (*ARMS, Arm.of(Strategy.ACHIEVABLE, cost(0.0, 0.0), Status.OPTIMAL, 0.0))

    text = Seen(page(msgspec.structs.replace(LATENCY_PLAN, arms=arms), None)).text

    assert text.startswith("No saving to promise, simulated on")
    assert "No saving is achievable with a latency of 20ms, assumed." in text
    assert f"With free switching, a bound: {MINUS}15.64 % energy" in text
    assert f"Energy at +0.50 % time {MINUS}" in text
    assert "Energy, promised" not in text
    assert f"{MINUS}1.13 % energy at {MINUS}0.04 % time: use that" in text


def test_where_no_schedule_keeps_the_budget_that_comes_first() -> None:
    plan = with_plan(arms=(*ARMS, Arm.of(Strategy.ACHIEVABLE, None, Status.INFEASIBLE)))

    text = Seen(page(plan, None)).text

    assert text.startswith("No schedule keeps +0.00 % time, simulated on")
    assert "No schedule under this latency keeps the time budget." in text
    assert f"With free switching, a bound: {MINUS}15.64 % energy" in text
    assert f"Energy, a bound {MINUS}15.64 %" in text
    assert "Energy, promised" not in text
    assert "Certificate no choice of clocks meets the time budget" in text
    said = " ".join("".join(printed(part) for part in plan_tables(plan)).split())
    assert said.startswith("No schedule keeps +0.00 % time, simulated on")
    assert "promises" not in said


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
    assert "top savings of a step, with free switching, a bound" in said


def test_a_terminal_gives_advice_before_the_tables_where_one_clock_is_enough() -> None:
    fixed = Arm.of(Strategy.BEST_FIXED, cost(-0.001, -0.0505), Status.OPTIMAL, 0.0)
    plan = msgspec.structs.replace(LATENCY_PLAN, arms=(ARMS[0], fixed, *LATENCY_PLAN.arms[2:]))
    said = " ".join("".join(printed(part) for part in plan_tables(plan)).split())

    commands = "sudo nvidia-smi -i 0 -lgc 1680,1680 sudo nvidia-smi -i 0 -lmc 9251,9251"
    assert said.index("use that") < said.index(commands) < said.index("clocks chosen")
    assert "undo: sudo nvidia-smi -i 0 -rgc && sudo nvidia-smi -i 0 -rmc" in said


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


def test_nothing_without_a_frontier_is_said_without_a_table() -> None:
    said = [printed(part) for part in plan_tables(nothing_plan(frontier=()))]

    assert len(said) == 2
    assert said[0].startswith("No saving to promise")


def test_a_fixed_clock_that_saves_as_much_is_recommended() -> None:
    fixed = Arm.of(Strategy.BEST_FIXED, cost(-0.001, -0.0505), Status.OPTIMAL, 0.0)
    plan = msgspec.structs.replace(LATENCY_PLAN, arms=(ARMS[0], fixed, *LATENCY_PLAN.arms[2:]))
    sentence = "-5.05 % energy at -0.10 % time, as good as -5.12 % within 0.1 points: use that"

    html = page(plan, None)

    assert sentence.replace("-", MINUS) in Seen(html).text
    assert (
        "<pre>sudo nvidia-smi -i 0 -lgc 1680,1680\nsudo nvidia-smi -i 0 -lmc 9251,9251</pre>"
        in html
    )
    assert sentence in " ".join("".join(printed(p) for p in plan_tables(plan)).split())
    assert "use that" not in page(LATENCY_PLAN, None)


def test_a_plan_for_one_clock_does_not_recommend_itself() -> None:
    text = page(with_plan(chosen=Strategy.BEST_FIXED, granularity=Granularity.STEP), None)

    assert "use that" not in text
    assert "no clocks change during it" in text
    assert "sudo nvidia-smi -i 0 -lgc 1680,1680" in text


@pytest.mark.parametrize(
    ("fixed", "wanted", "unwanted"),
    [
        (Clocks(core_mhz=1680), "-rgc", "-lmc"),
        (Clocks(mem_mhz=5001), "-rmc", "-lgc"),
    ],
)
def test_a_clock_left_to_the_driver_is_not_set(fixed: Clocks, wanted: str, unwanted: str) -> None:
    text = page(with_plan(fixed=fixed), None)

    assert f"To undo: <code>sudo nvidia-smi -i 0 {wanted}</code>" in text
    assert unwanted not in text


def test_numbers_of_the_slider_are_the_line_that_is_drawn() -> None:
    line = tuple(cost(0.002 * n, -0.3 * n / (n + 20.0)) for n in range(200))
    html = page(with_plan(frontier=line), None)

    points = json.loads(html.split('id="frontier-points">')[1].split("</script>")[0])
    drawn = [a["points"] for tag, a in Seen(html).tags if tag == "polyline"]

    assert len(drawn) == 2
    assert all(len((each or "").split()) == len(points) for each in drawn)
    assert points[0] == [0.0, 0.0]
    assert points[-1][0] == 0.05  # as far as is drawn, between two points of the frontier
    assert [time for time, _ in points] == sorted(time for time, _ in points)
    assert f"It goes on to +39.80 % time, {MINUS}27.26 % energy." in Seen(html).text


def test_nothing_on_the_page_scrolls_within_it_so_print_shows_all() -> None:
    body = page(LATENCY_PLAN, VALIDATION).split("</style>")[1]

    assert 'class="scroll' not in body
    assert body.count("<table") == body.count('class="stack"')


def test_runs_per_step_are_shown_where_known() -> None:
    name = "kernel1"
    plan = with_plan(kernels={name: choices(2)[name]}, runs=(Kernel(name=name, count=4321),))

    assert "4321" in Seen(page(plan, None)).text
    assert "4321" not in Seen(page(PLAN, None)).text


def test_a_plan_that_was_not_run_again_says_so() -> None:
    without, given = Seen(page(PLAN, None)).text, Seen(page(PLAN, VALIDATION)).text

    assert "this plan was not run again" in without
    assert "this plan was not run again" not in given
    assert "Of 9 pairs, 0 save at least the promised energy; 2 keep the time budget." in given
    assert f"{MINUS}14.53 %" in given


def test_warnings_of_plan_and_validation_stand_above_the_numbers() -> None:
    both = ("the table has holes", "the GPU was throttled")

    text = Seen(page(with_plan(warnings=both[:1]), with_validation(warnings=both))).text

    assert all(text.count(warning) == 1 for warning in both)
    assert max(map(text.index, both)) < text.index("Energy, promised")


def test_what_is_unknown_is_called_unknown() -> None:
    plan = with_plan(gpu=GpuInfo(name="RTX"), fingerprint=None, closure=None, frontier=())

    text = Seen(page(plan, None)).text

    for fact in ("Driver", "Power limit", "Step fingerprint", "Kernel launches per step"):
        assert f"{fact} unknown" in text
    assert "Closure unknown: the step was not measured as a whole." in text


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
