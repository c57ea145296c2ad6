"""`studies/compare.py`: policies are judged alike, and within a budget none beats a plan."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

import compare as comparing
from compare import POLICIES, Rival, command, compare
from steps_beside import campaign_beside
from underclock.errors import DataError, UsageError
from windows import having

SWEEP = Path(__file__).parents[3] / "docs" / "examples" / "sweep.csv"
BUDGETED = POLICIES.keys() - {"edp", "ed2p"}


def rivals_of(found: comparing.Comparison) -> dict[str, Rival]:
    return {rival.name: rival for rival in found.rivals}


def energy_j(rival: Rival, *, achievable: bool = False) -> float:
    choice = rival.achievable if achievable else rival.free
    return (choice and choice.arm.energy_j) or math.inf


def test_as_json_each_has_its_clocks_and_whether_it_keeps_the_budget() -> None:
    asked = [str(SWEEP), "--max-slowdown", "1%"]
    printed = CliRunner().invoke(command, [*asked, "--json"], catch_exceptions=False)
    found = {each["name"]: each for each in json.loads(printed.output)["rivals"]}

    assert found.keys() == POLICIES.keys()
    assert found["kernel_global"]["free"]["keeps_budget"]
    assert len(found["kernel_global"]["free"]["kernels"]) == 4
    assert found["kernel_global"]["achievable"] is None
    assert not found["edp"]["free"]["keeps_budget"]
    assert found["edp"]["free"]["arm"]["name"] == "edp"
    table = CliRunner().invoke(command, asked, catch_exceptions=False).output
    assert "| kernel, global (ours) | -0.94 % | -7.97 % | kept |" in table.replace("\u2212", "-")


def test_a_step_under_its_cap_is_compared_with_intervals_and_as_clocks_follow() -> None:
    found = compare(campaign_beside(0.4, 0.4), 0.02, latency="2ms", seed=1)
    rivals = rivals_of(found)
    ours = rivals["kernel_global"]

    assert found.latency == "2ms, assumed"
    for rival in rivals.values():
        for choice in filter(None, (rival.free, rival.achievable)):
            assert choice.arm.time_interval is not None
            assert choice.arm.energy_interval is not None
    for name in BUDGETED - {"feedback"}:
        rival = rivals[name]
        assert all(each is None or each.keeps_budget for each in (rival.free, rival.achievable))
        assert energy_j(rival) >= energy_j(ours) * (1 - 1e-4)
        least_j = energy_j(ours, achievable=True)
        assert energy_j(rival, achievable=True) >= least_j * (1 - 1e-3)


def test_what_searches_at_random_repeats_with_its_seed() -> None:
    first, again, other = (
        compare(SWEEP, 0.01, policies=["feedback", "genetic"], seed=seed).rivals
        for seed in (3, 3, 4)
    )

    assert first == again
    assert first != other


def test_what_cannot_be_compared_is_refused() -> None:
    campaign = campaign_beside(0.4, 0.4)
    auto = tuple(sample for sample in campaign.samples if sample.asked.is_auto)

    with pytest.raises(DataError, match="all samples are at core auto"):
        compare(having(campaign, samples=auto))
    with pytest.raises(UsageError, match="no policy 'genetics'"):
        compare(SWEEP, policies=["genetics"])
