"""`underclock compare`: one table and one page of rivals, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import underclock
from steps_beside import campaign_beside
from underclock.app import main
from underclock.errors import DataError, InfeasibleError, UsageError
from underclock.records import Strategy
from windows import having

Fails = Callable[[str], tuple[int, str]]
SWEEP = Path(__file__).parents[2] / "docs" / "examples" / "sweep.csv"


def test_all_policies_stand_in_one_table_and_on_one_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "rivals.html"
    main(["compare", str(SWEEP), "--max-slowdown", "1%", "-o", str(page)])
    said = capsys.readouterr().out
    text = page.read_text()

    for title in ("best fixed clock", "feedback", "EDP", "ED²P", "genetic", "pass-level", "ours"):
        assert title in said
        assert title in text
    assert "over" in said
    assert "power limit: costs are of kernels alone" in said
    assert "<svg" in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    main(["compare", str(SWEEP), "--max-slowdown", "1%", "-o", "-"])
    assert capsys.readouterr().out.strip() == text.strip()


def test_as_json_each_has_its_clocks_and_whether_it_keeps_the_budget(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(f"compare {SWEEP} --max-slowdown 1% --policy kernel_global --policy edp --json".split())
    found = json.loads(capsys.readouterr().out)
    ours, edp = found["rivals"]

    assert (ours["name"], edp["name"]) == ("kernel_global", "edp")
    assert ours["free"]["keeps_budget"]
    assert not edp["free"]["keeps_budget"]
    assert len(ours["free"]["kernels"]) == 4
    assert ours["achievable"] is None


@pytest.mark.untraced
def test_of_a_step_that_ran_whole_policies_are_told_as_achievable_too() -> None:
    found = underclock.compare(campaign_beside(0.4, 0.4), "2%", latency="2ms", gpu="sim:rtx3080ti")
    ours, limit = found.rival("kernel_global"), found.rival("power_limit")

    assert found.latency == "2ms, assumed"
    assert ours.achievable is not None
    assert ours.achievable.keeps_budget
    assert limit.power_limit_w is not None
    assert "lists no power profiles" in found.rival("power_profile").note
    with pytest.raises(KeyError, match="score"):
        found.rival("score")


def test_a_step_that_ran_whole_only_has_no_clocks_for_its_kernels() -> None:
    campaign = campaign_beside(0.4, 0.4)
    windows = tuple(
        underclock.Window(
            kernel="",
            asked=underclock.Clocks(core_mhz=mhz),
            core_mhz=mhz or 1740.0,
            core_spread_mhz=1.0,
            time_s=1.0 + 100.0 / (mhz or 1740),
            energy_j=100.0 + (mhz or 1740) / 10.0,
        )
        for mhz in (900, 1200, 1500, None)
    )
    given = msgspec.structs.replace(campaign, windows=windows)
    found = underclock.compare(given, policies=["best_fixed", "genetic"])

    assert found.rival("best_fixed").free is not None
    assert "ran whole only" in found.rival("genetic").note


def test_unknown_policies_are_refused_with_the_nearest(fails: Fails) -> None:
    code, said = fails(f"compare {SWEEP} --policy genetics")

    assert code == UsageError.exit_code
    assert "there is no policy 'genetics'" in said
    assert "did you mean 'genetic'?" in said


def test_samples_at_auto_only_leave_nothing_to_compare() -> None:
    campaign = campaign_beside(0.4, 0.4)
    auto = tuple(sample for sample in campaign.samples if sample.asked.is_auto)

    with pytest.raises(DataError, match="all samples are at core auto"):
        underclock.compare(having(campaign, samples=auto))


def test_where_no_policy_keeps_the_budget_the_table_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(SWEEP), "--max-slowdown=-50%"])

    assert ended.value.code == InfeasibleError.exit_code
    said = capsys.readouterr().out
    assert "kept" not in said.split("time and energy in %")[0]
    assert "none" in said


def test_a_page_replaces_no_other_file(tmp_path: Path, fails: Fails) -> None:
    (tmp_path / "other.txt").write_text("mine")
    code, said = fails(f"compare {SWEEP} -o {tmp_path / 'other.txt'} --force")

    assert code == UsageError.exit_code
    assert "other.txt" in said


def test_every_policy_may_be_named() -> None:
    found = underclock.compare(SWEEP, policies=[Strategy.PASS])

    assert [rival.name for rival in found.rivals] == ["pass"]
