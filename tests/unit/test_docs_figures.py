"""Figures that pages quote are those of the evidence that they cite."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from underclock import Goal, SampleSet, plan
from underclock.app.planning import switching_of

_ROOT = Path(__file__).resolve().parents[2]
_NUMBER = r"([-+]?\d+(?:\.\d+)?)"


def _said(page: str, sentence: str) -> list[float]:
    """Return the numbers of a page's one sentence, in which each is a #."""
    pattern = re.escape(sentence).replace(r"\#", _NUMBER).replace(r"\ ", r"\s+")
    (found,) = re.finditer(pattern, _text(page))
    return [float(each) for each in found.groups()]


def _row(page: str, begins: str) -> list[float]:
    """Return the numbers in the first row of a page's tables, or line, that begins so."""
    row = next(line for line in _text(page).splitlines() if line.startswith(begins))
    return [float(each) for each in re.findall(_NUMBER, row.removeprefix(begins))]


def _text(page: str) -> str:
    return (_ROOT / page).read_text().replace("\N{MINUS SIGN}", "-")


def test_what_an_installation_takes() -> None:
    ours = _said("docs/evidence/install.md", "ours (# packages, # MB)")

    assert _said("docs/start.md", "It brings # packages, # MB in all") == ours


def test_what_it_takes_from_the_wheel_to_the_page() -> None:
    page = "docs/evidence/install.md"
    (install_s,) = _row(page, "| `pip install underclock-0.2.0-py3-none-any.whl` |")
    (demo_s,) = _row(page, "| `underclock demo` |")
    both_s, wanted_s = _row(page, "| both, until `underclock-demo/report.html` is there |")

    assert install_s + demo_s == pytest.approx(both_s)
    assert both_s <= wanted_s


def test_what_one_clock_saves_of_nanogpt() -> None:
    page = "docs/evidence/h200/scripts.md"
    begins = ("| H200 | eager |", "| H200 | compiled |", "| H200, 2026-11-29 | eager |")
    rows = [_row(page, begin) for begin in (*begins, "| H100 | eager |")]
    found = [(round(-saved, 1), round(half, 1)) for *_, saved, half, _, _ in rows]

    said = "one clock saves # % (± #) on an H100, and # to # % (± # to #) on"
    (saved, half), h200s = found[-1], found[:-1]
    savings, halves = ([each[at] for each in h200s] for at in (0, 1))
    ends = [min(savings), max(savings), min(halves), max(halves)]
    assert _said("README.md", said) == [saved, half, *ends]


@pytest.mark.slow
def test_what_an_h200_saves_of_gpt3_xl() -> None:
    # Of two boards' samples those that save more.
    body = (_ROOT / "docs/evidence/h200/steered-xl-5.json").read_bytes()
    samples = msgspec.json.decode(body, type=SampleSet)
    switching = switching_of("6ms", samples, Goal(), None)
    assert switching is not None
    made = plan(samples, switching=replace(switching, curve=False))  # at 6 ms alone
    assert made.answer[0].startswith("No saving is promised")
    (least,) = _said("README.md", "XL on an H200, with clocks that take 6 ms, less than # %, none")
    assert -100.0 * made.promise.energy_change < least


def test_how_often_the_ledger_holds_the_truth() -> None:
    made = "of # whose saving is known # had the truth inside, # a false saving"
    of, inside, false = _said("docs/evidence/ledger.md", made)

    said = "in # of # runs whose saving is known, half of all runs not as planned; # had a false"
    assert _said("docs/evidence/README.md", said) == [inside, of, false]
    assert inside >= 0.95 * of
    assert false == 0


def test_how_far_off_a_step_is_that_is_carried_over_on_an_h200() -> None:
    xl, small = "XL layer, batch 40", "XL layer, batch 8"
    batches, models = (
        [
            abs(number)
            for known, step in ways
            for number in _row("docs/evidence/transfer.md", f"| {known} → {step} |")[:2]
        ]
        for ways in (
            ((xl, small), (small, xl)),
            itertools.permutations((xl, "medium, 2 layers", "small, whole"), 2),
        )
    )

    within = "time is expected within # % and its energy within # %"
    assert _said("docs/proven.md", within) == [max(batches[::2]), max(batches[1::2])]
    least, most = _said("docs/proven.md", "to another model of the family both are # to # % off")
    assert (round(min(models)), round(max(models))) == (least, most)


def test_how_many_plans_ran_as_they_say() -> None:
    page = "docs/evidence/executed.md"
    said = "# of # cells within # % of the planned time, # of # within # % of the planned energy"
    assert _said("docs/proven.md", said) == [
        *_row(page, "- time: ")[:3],
        *_row(page, "- energy: ")[:3],
    ]


def test_what_a_pace_saves_on_an_h200() -> None:
    page = "docs/evidence/serving.md"
    saved: list[list[float]] = []
    for trace in ("conv", "code"):
        part = _text(page).partition(f"### sim:h200, {trace}\n")[2].partition("\n###")[0]
        pace, fixed = (
            next(line.split("|")[2:-1] for line in part.splitlines() if line.startswith(begins))
            for begins in ("| governor with a pace, 6 ms |", "| best fixed clock")
        )
        energy, ttft, tpot, least = (
            float(re.findall(_NUMBER, cell)[0]) for cell in (pace[0], pace[2], pace[4], fixed[0])
        )
        assert pace[5].strip() == "yes"
        assert max(ttft, tpot) <= 2.0
        assert energy <= min(-15.0, least - 5.0)
        saved.append([-energy, -least])

    said = "takes # % (conversations) and # % (code) less energy at 99th percentiles at most"
    assert _said("docs/proven.md", said) == [round(each[0]) for each in saved]
    said = "the best fixed clock that keeps them # and # % less"
    assert _said("docs/proven.md", said) == [round(each[1]) for each in saved]
