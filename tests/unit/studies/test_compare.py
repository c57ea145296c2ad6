"""`studies/compare.py`: policies are judged alike, and within a budget none beats a plan."""

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

import compare as comparing
from compare import POLICIES, Rival, command, compare, stretches
from steps_beside import campaign_beside
from underclock.core.solvers import SequenceProblem
from underclock.errors import DataError, InfeasibleError, UsageError
from underclock.records import Clocks, Window
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


def test_where_no_policy_keeps_the_budget_the_exit_code_says_so() -> None:
    ended = CliRunner().invoke(command, [str(SWEEP), "--max-slowdown=-50%"])

    assert ended.exit_code == InfeasibleError.exit_code
    assert "kept" not in ended.output


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


def test_where_clocks_follow_only_once_in_a_step_one_pair_is_held() -> None:
    rivals = rivals_of(compare(campaign_beside(0.4, 0.4), 0.02, latency="10s"))

    for name in ("edp", "ed2p", "genetic", "pass", "kernel_global"):
        choice = rivals[name].achievable
        assert choice is not None
        assert len(choice.clocks) == 1


def test_what_searches_at_random_repeats_with_its_seed() -> None:
    first, again, other = (
        compare(SWEEP, 0.01, policies=["feedback", "genetic"], seed=seed).rivals
        for seed in (3, 3, 4)
    )

    assert first == again
    assert first != other


def test_a_step_that_ran_whole_only_has_no_clocks_for_its_kernels() -> None:
    windows = tuple(
        Window(
            kernel="",
            asked=Clocks(core_mhz=mhz),
            core_mhz=mhz or 1740.0,
            core_spread_mhz=1.0,
            time_s=1.0 + 100.0 / (mhz or 1740),
            energy_j=100.0 + (mhz or 1740) / 10.0,
        )
        for mhz in (900, 1200, 1500, None)
    )
    given = msgspec.structs.replace(campaign_beside(0.4, 0.4), windows=windows)
    rivals = rivals_of(compare(given, policies=["best_fixed", "genetic"]))

    assert rivals["best_fixed"].free is not None
    assert "ran whole only" in rivals["genetic"].note


def test_what_cannot_be_compared_is_refused() -> None:
    campaign = campaign_beside(0.4, 0.4)
    auto = tuple(sample for sample in campaign.samples if sample.asked.is_auto)

    with pytest.raises(DataError, match="all samples are at core auto"):
        compare(having(campaign, samples=auto))
    with pytest.raises(UsageError, match="no policy 'genetics'"):
        compare(SWEEP, policies=["genetics"])


@pytest.mark.parametrize(
    ("lasts_s", "dwell_s", "blocked", "expected"),
    [
        ([1, 1, 1, 1], 2.0, [], [0, 0, 1, 1]),
        ([1, 1, 1, 1, 1], 2.0, [], [0, 0, 1, 1, 1]),
        ([1, 1, 1, 1], 2.0, [2], [0, 0, 0, 0]),
        ([3, 1, 3, 3], 2.0, [0], [0, 1, 1, 0]),
        ([1, 1], 9.0, [], [0, 0]),
        ([1, 1, 1], 0.0, [], [0, 1, 2]),
    ],
)
def test_stretches_are_as_long_as_a_change(
    lasts_s: list[float], dwell_s: float, blocked: list[int], expected: list[int]
) -> None:
    at = np.zeros(len(lasts_s), dtype=np.bool_)
    at[blocked] = True
    steps = SequenceProblem(
        time_s=np.array(lasts_s)[:, None] * [1.0, 1.2],
        energy_j=np.ones((len(lasts_s), 2)),
        order=np.arange(len(lasts_s)),
        switch_time_s=np.zeros((2, 2)),
        switch_energy_j=np.zeros((2, 2)),
        dwell_s=dwell_s * (1.0 - np.eye(2)),
        blocked=at,
    )
    assert stretches(steps).tolist() == expected
