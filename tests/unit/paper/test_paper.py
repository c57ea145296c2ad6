"""The paper's study: complete, beside the paper's numbers, and honest about its own."""

import contextlib
import csv
import io
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from underclock.app import main
from underclock.paper.study import (
    TABLE1,
    TABLE2,
    QuotedNumber,
    Study,
    before_optimizer,
)
from underclock.records import (
    Aggregate,
    Granularity,
    Objective,
    Pass,
)
from underclock.tracing.held import trace

_TABLE1_CSV = Path(__file__).parents[4] / "shared/data/spaan2026_table1_rtx3080ti.csv"
# Ours may have no such kernel.
_MAY_BE_MISSING = ("sacrificed GEMMs:", "memory-lowered GEMMs:", "core-lowered others:")


@pytest.fixture(scope="module")
def study() -> Study:
    """Return what ``underclock paper --json`` prints: the study that every test here looks at."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        main(["paper", "--gpu", "sim:rtx3080ti#smooth", "--json"])
    return msgspec.json.decode(said.getvalue(), type=Study)


def _quoted(study: Study, name: str) -> QuotedNumber:
    (quoted,) = [number for number in study.quoted if number.name == name]
    return quoted


def _ours(study: Study, granularity: Granularity, aggregate: Aggregate, of: str) -> float:
    name = f"{granularity}-level, {Objective.WASTE}, {aggregate}: {of}"
    ours = _quoted(study, name).ours
    assert ours is not None
    return ours


def test_the_tables_have_every_group_beside_the_papers(
    study: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("underclock.paper.study.run_study", lambda _conditions: study)
    main(["paper", "--gpu", "sim:rtx3080ti#smooth"])
    said = capsys.readouterr().out

    for words in ("Table 2", "Table 1", "Validation", "kernels (", "-15.64", "simulated"):
        assert words in said
    assert study.calibration[:40] in said


def test_more_freedom_never_costs_energy(study: Study) -> None:
    for granularity in (Granularity.PASS, Granularity.KERNEL):
        assert _ours(study, granularity, Aggregate.GLOBAL, "energy") <= _ours(
            study, granularity, Aggregate.LOCAL, "energy"
        )
        for aggregate in Aggregate:
            assert _ours(study, granularity, aggregate, "time") <= 1e-9
    for aggregate in Aggregate:
        kernel, whole = (
            _ours(study, granularity, aggregate, "energy")
            for granularity in (Granularity.KERNEL, Granularity.PASS)
        )
        assert kernel <= whole <= 0.0


def test_every_quoted_number_stands_beside_ours(study: Study) -> None:
    named = [(number.group, number.name) for number in study.quoted]
    lacking = [number.name for number in study.quoted if number.ours is None]

    assert len(named) == len(set(named))
    counts = Counter(number.group for number in study.quoted)
    assert counts.keys() == {
        "Table 1",
        "Table 2",
        "Validation",
        "The discovered clocks elsewhere",
    }
    assert counts["Table 2"] == 2 * len(TABLE2)
    assert all(name.startswith(_MAY_BE_MISSING) for name in lacking)
    for number in study.quoted:
        if number.ours is not None:
            assert number.difference == number.ours - number.paper


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("kernel-level, waste, global: energy", -8.92),
        ("kernel-level, edp, global: time", 30.37),
        ("mean of all pairs: energy", -8.45),
        ("pairs", 100),
    ],
)
def test_ours_is_what_the_evidence_shows(study: Study, name: str, ours: float) -> None:
    assert _quoted(study, name).ours == pytest.approx(ours, abs=0.005)
    assert (study.same, study.kernels, study.overlapping) == (35, 46, 38)


def test_the_step_is_the_papers() -> None:
    step = before_optimizer(trace("gpt3-xl"))

    assert not any(kernel.pass_ is Pass.OPTIMIZER for kernel in step.kernels)
    assert [kernel.count for kernel in step.kernels] == [row.invocations for row in TABLE1]


def test_the_published_table_is_the_shared_one() -> None:
    if not _TABLE1_CSV.exists():
        pytest.skip("the paper's table is not beside this checkout")
    with _TABLE1_CSV.open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert len(rows) == len(TABLE1)
    for row, ours in zip(rows, TABLE1, strict=True):
        assert (ours.section, ours.kernel) == (row["section"], row["kernel"])
        assert ours.invocations == int(row["invocations_per_iteration"])
        for clock, field in ((ours.clocks.core_mhz, "core_mhz"), (ours.clocks.mem_mhz, "mem_mhz")):
            assert ("auto" if clock is None else str(clock)) == row[field]
        assert ours.change.time_pct == float(row["time_change_pct"])
        assert ours.change.energy_pct == float(row["energy_change_pct"])
