"""Terminal tables and the page. The numbers are invented, for tests only."""

import io
import subprocess
import sys
from html.parser import HTMLParser

import msgspec
import pytest
from rich.console import Console
from rich.table import Table

from underclock.records import (
    AUTO,
    Aggregate,
    Arm,
    Choice,
    Clocks,
    Closure,
    Cost,
    Evidence,
    GpuInfo,
    Granularity,
    Kernel,
    Objective,
    OtherArm,
    Plan,
    Score,
    Spread,
    Status,
    Strategy,
    Validation,
    Verdict,
)
from underclock.report import (
    arms_table,
    clocks_table,
    page,
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
VALIDATION = Validation(
    evidence=Evidence.MEASURED,
    gpu=GPU,
    workload="gpt3-xl",
    chosen=Strategy.KERNEL_GLOBAL,
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


def printed(table: Table, width: int = 80) -> str:
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
        clocks_table(plan, 5),
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


def test_a_kernel_name_that_looks_like_rich_markup_is_printed_as_it_is() -> None:
    plan = with_plan(kernels={"[red]gemm[/]": choices(1)["kernel0"]})

    assert "[red]gemm[/]" in printed(clocks_table(plan, None))


def test_a_limited_clocks_table_shows_the_greatest_savings_first() -> None:
    lines = printed(clocks_table(PLAN, 3)).splitlines()

    assert [t.split()[0] for t in lines if t.startswith(" kernel4")] == [
        "kernel47",
        "kernel46",
        "kernel45",
    ]
    assert any("3 of 48 kernels" in line for line in lines)


def test_an_unlimited_clocks_table_keeps_the_order_of_the_plan() -> None:
    lines = printed(clocks_table(PLAN, None)).splitlines()

    shown = [line.split()[0] for line in lines if "%" in line]
    assert shown == list(PLAN.kernels)
    assert "auto" in next(line for line in lines if "kernel0" in line)


def test_a_validation_table_counts_the_pairs() -> None:
    text = printed(validation_table(VALIDATION))
    free = printed(validation_table(with_validation(pairs_keeping_time=None)))

    assert "of 9 pairs, 0 save the promised energy; 2 keep the time budget" in text
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
    assert '"name":"best fixed clock"' in html


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

    assert f"{MINUS}15.6 % energy at +0.0 % time, simulated on NVIDIA GeForce RTX 3080 Ti" in text


def test_a_script_in_a_name_is_text_not_a_script() -> None:
    harmless = page(PLAN, VALIDATION)
    plan = with_plan(
        workload=NASTY,
        gpu=GpuInfo(name=NASTY),
        kernels={NASTY: choices(1)["kernel0"]},
        warnings=(NASTY,),
    )

    text = page(plan, VALIDATION)

    assert Seen(text).count("script") == Seen(harmless).count("script")
    assert NASTY not in text
    assert NASTY in Seen(text).words  # the table shows it whole
    assert '"customdata":["&lt;script&gt;alert(1)' in text  # plotly reads markup in hover text


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


def test_no_figure_shows_buttons_that_were_not_asked_for() -> None:
    text = page(PLAN, VALIDATION)  # plotly's own choice has one that uploads the figure

    assert text.count('"modeBarButtons": [["toImage"]') == 3


def test_equal_input_gives_equal_bytes() -> None:
    assert page(PLAN, VALIDATION) == page(PLAN, VALIDATION)


def test_a_plan_of_one_kernel_has_a_page() -> None:
    plan = with_plan(kernels=choices(1), frontier=(cost(0.0, 0.0),))

    assert "The one kernel" in Seen(page(plan, None)).text


def test_a_plan_of_a_thousand_kernels_draws_few_bars_and_says_so() -> None:
    seen = Seen(page(with_plan(kernels=choices(1000)), None))

    assert "Only the 40 greatest savings of 1000 kernels are drawn" in seen.text
    assert seen.count("tr") > 1000


def test_long_names_are_cut_in_the_figure_but_not_in_the_table() -> None:
    name = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nt"

    text = page(with_plan(kernels={name: choices(1)["kernel0"]}), None)

    assert name in Seen(text).words
    assert "\\u2026" in text or ELLIPSIS in text


def test_runs_per_step_are_shown_where_known() -> None:
    name = "kernel0"
    plan = with_plan(kernels={name: choices(1)[name]}, runs=(Kernel(name=name, count=4321),))

    assert "4321" in Seen(page(plan, None)).text
    assert "4321" not in Seen(page(PLAN, None)).text


def test_a_plan_that_was_not_run_again_says_so() -> None:
    without, given = Seen(page(PLAN, None)).text, Seen(page(PLAN, VALIDATION)).text

    assert "this plan was not run again" in without
    assert "this plan was not run again" not in given
    assert "Of 9 pairs, 0 save at least the promised energy, and 2 keep the time budget." in given
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


def test_tables_load_neither_plotly_nor_jinja2() -> None:
    code = "import sys, underclock.report; print({'plotly', 'jinja2'} & sys.modules.keys())"

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert result.stdout == "set()\n"
