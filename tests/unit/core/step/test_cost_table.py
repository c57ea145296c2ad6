"""From samples to costs: means, counts, what auto is, and how far the step is from its kernels."""

import math
import statistics

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.step.cost_table import cost_table, unmeasured
from underclock.errors import DataError
from underclock.records import (
    AUTO,
    Accounting,
    Clocks,
    Closure,
    Evidence,
    GpuInfo,
    Kernel,
    Kind,
    Mix,
    SampleSet,
    Step,
    Window,
)
from windows import gathered, having, with_step

LOW, MIDDLE, HIGH = (Clocks(core_mhz=mhz, mem_mhz=5001) for mhz in (600, 1200, 1800))
quantities = st.floats(1e-6, 1e3)


def sample(
    kernel: str,
    asked: Clocks = AUTO,
    time_s: float = 1.0,
    energy_j: float = 100.0,
) -> Window:
    return Window(kernel=kernel, asked=asked, time_s=time_s, energy_j=energy_j)


def sample_set(
    *samples: Window,
    counts: tuple[int, ...] = (1, 1),
    in_situ: tuple[Window, ...] = (),
    expected: int | None = None,
    warnings: tuple[str, ...] = (),
) -> SampleSet:
    """Return samples of kernels named ``a``, ``b``, … with these counts."""
    return SampleSet(
        evidence=Evidence.SIMULATED,
        gpu=GpuInfo(name="a GPU"),
        step=Step(
            name="a step",
            kernels=tuple(Kernel(name=chr(97 + k), count=count) for k, count in enumerate(counts)),
        ),
        windows=gathered(samples, in_situ=in_situ),
        expected_samples=expected,
        warnings=warnings,
    )


def step(time_s: float, energy_j: float) -> Window:
    return sample("step", time_s=time_s, energy_j=energy_j)


@given(st.lists(st.tuples(quantities, quantities), min_size=1, max_size=8), st.integers(1, 96))
def test_a_cost_is_the_mean_of_its_repeats_times_the_count(
    repeats: list[tuple[float, float]], count: int
) -> None:
    table = cost_table(sample_set(*(sample("a", AUTO, *each) for each in repeats), counts=(count,)))

    times_s, energies_j = zip(*repeats, strict=True)
    assert table.auto_time_s == pytest.approx(count * statistics.mean(times_s))
    assert table.auto_energy_j == pytest.approx(count * statistics.mean(energies_j))


def test_settings_are_sorted_by_memory_then_core_and_auto_is_fastest() -> None:
    slow_memory = Clocks(core_mhz=2000, mem_mhz=810)
    only_core = Clocks(core_mhz=300)
    settings = (AUTO, HIGH, only_core, LOW, slow_memory)

    table = cost_table(sample_set(*(sample("a", s) for s in settings), counts=(1,)))

    assert table.settings == (slow_memory, LOW, HIGH, only_core, AUTO)
    assert MIDDLE not in table.settings


def test_a_setting_a_kernel_lacks_costs_infinity_there_and_nowhere_else() -> None:
    table = cost_table(sample_set(sample("a"), sample("b"), sample("a", LOW)))

    assert np.isfinite(table.time_s).tolist() == [[True, True], [False, True]]
    assert (np.isfinite(table.energy_j) == np.isfinite(table.time_s)).all()


def test_a_kernel_without_samples_is_an_error_that_names_it() -> None:
    with pytest.raises(DataError, match="no sample of 'b' and 1 more"):
        cost_table(sample_set(sample("a"), counts=(1, 1, 1)))


def test_a_sample_of_an_unknown_kernel_is_an_error_that_names_it() -> None:
    with pytest.raises(DataError, match="'z', which is no kernel"):
        cost_table(sample_set(sample("a"), sample("z"), counts=(1,)))


class TestBaseline:
    def test_without_auto_it_is_the_fastest_clocks_every_kernel_has(self) -> None:
        common = [sample(k, s) for k in "ab" for s in (LOW, MIDDLE)]

        table = cost_table(sample_set(*common, sample("a", HIGH)))

        assert table.settings[table.baseline] == MIDDLE
        (warning,) = table.warnings
        assert "no auto row is used" in warning
        assert str(MIDDLE) in warning
        assert "the fastest clocks every kernel has" in warning

    def test_an_unknown_one_is_an_error_that_offers_those_that_are_whole(self) -> None:
        rows = [sample("a", LOW), sample("b", LOW), sample("a", HIGH)]

        with pytest.raises(DataError, match="no row has the baseline") as caught:
            cost_table(sample_set(*rows), baseline=MIDDLE)

        assert str(LOW) in caught.value.hint
        assert str(HIGH) not in caught.value.hint

    @pytest.mark.parametrize("named", [None, AUTO])
    def test_a_kernel_that_lacks_it_is_an_error_that_names_it(self, named: Clocks | None) -> None:
        rows = [sample("a"), sample("a", LOW), sample("b", LOW), sample("c", LOW)]

        with pytest.raises(DataError, match=r"'b' and 1 more has no row at core auto") as caught:
            cost_table(sample_set(*rows, counts=(1, 1, 1)), baseline=named)

        assert caught.value.hint

    def test_no_clocks_in_common_is_an_error(self) -> None:
        with pytest.raises(DataError, match="no clock pair was measured for every kernel"):
            cost_table(sample_set(sample("a", LOW), sample("b", HIGH)))


class TestWarnings:
    def test_a_kernel_with_one_setting_has_nothing_to_choose(self) -> None:
        (warning,) = cost_table(sample_set(sample("a"), sample("a", LOW), sample("b"))).warnings

        assert warning == "'b' was measured at one clock pair only: it stays there"

    def test_an_unfinished_measurement_says_how_far_it_is(self) -> None:
        rows = [sample("a"), sample("a", LOW)]

        (warning,) = cost_table(sample_set(*rows, counts=(1,), expected=5)).warnings

        assert "2 of 5 samples" in warning
        assert "underclock measure" in warning


class TestInSitu:
    @pytest.fixture
    def measured(self) -> SampleSet:
        rows = [sample("a", AUTO, 4.0, 400.0), sample("b", AUTO, 4.0, 440.0), sample("a", LOW)]
        return sample_set(*rows, counts=(1, 2), in_situ=(step(14.0, 1400.0), step(16.0, 1600.0)))

    def test_closure_is_what_the_kernels_come_to_alone(self, measured: SampleSet) -> None:
        table = cost_table(measured)

        assert table.closure == Closure(time=12.0 / 15.0, energy=1280.0 / 1500.0)
        assert (table.auto_time_s, table.auto_energy_j) == (12.0, 1280.0)
        assert table.accounting is Accounting.ISOLATED


_MEASURED_W = (300.0, 320.0, 340.0, 600.0)
_KINDS = (Kind.MEMORY,) * 3 + (Kind.GEMM,)


def test_what_is_not_waited_for_leaves_the_others_all_of_the_step() -> None:
    campaign = _campaign(1e-3, 500.0)
    kernels = list(campaign.kernels)
    kernels[0] = msgspec.structs.replace(kernels[0], waited_for=0.0)
    # The first ran beside the others, so the step took no time and no idling for it.
    (step,) = campaign.in_situ
    short = msgspec.structs.replace(step, time_s=step.time_s - 1e-3, energy_j=step.energy_j - 0.3)
    shorter = having(campaign, mixed=(short,), in_situ=())
    told = unmeasured(with_step(shorter, kernels=tuple(kernels)))

    assert told.power_w == pytest.approx(unmeasured(campaign).power_w, rel=0.05)
    assert told.power_w > 1.2 * unmeasured(shorter).power_w


def _campaign(last_s: float, last_w: float, kind: Kind | None = Kind.MEMORY) -> SampleSet:
    """Return a campaign that did not reach the last kernel of five, nor any with co-load."""
    times_s, powers_w = (1e-3,) * 4 + (last_s,), (*_MEASURED_W, last_w)
    kernels = tuple(Kernel(name=f"k{i}", kind=kind) for i, kind in enumerate((*_KINDS, kind)))
    step_s = math.fsum(times_s)
    step_j = math.fsum(s * w for s, w in zip(times_s, powers_w, strict=True))
    step = Window(
        kernel="",
        mix=Mix(),
        core_mhz=1800.0,
        core_spread_mhz=0.0,
        time_s=step_s,
        energy_j=step_j,
        kernel_s=times_s,
        window_s=1.0,
    )
    return SampleSet(
        evidence=Evidence.MEASURED,
        gpu=GpuInfo(name="G"),
        step=Step(name="w", kernels=kernels, order=(0, 1, 2, 3, 4)),
        windows=gathered(
            tuple(
                Window(kernel=f"k{i}", time_s=1e-3, energy_j=1e-3 * w)
                for i, w in enumerate(_MEASURED_W)
            ),
            in_situ=(Window(kernel="w", time_s=step_s, energy_j=step_j),),
            mixed=(step,),
        ),
    )


@given(st.floats(310.0, 590.0))
def test_of_a_kernel_that_takes_much_of_the_step_its_energy_tells(power_w: float) -> None:
    found = unmeasured(_campaign(0.1, power_w))

    assert found.power_w == pytest.approx([power_w], rel=0.06)
    assert found.spread[0] < 0.06
    assert found.places.tolist() == [4]


def test_it_is_planned_at_auto_with_a_sentence_of_how_much_it_is() -> None:
    table = cost_table(_campaign(1e-3, 400.0))

    assert table.time_s[4, table.baseline] == pytest.approx(1e-3)
    assert table.auto_energy_j == pytest.approx(1.96, rel=0.1)
    said = [words for words in table.warnings if "'k4'" in words]
    assert len(said) == 1
    assert said[0].startswith("'k4' was never run alone and takes 20 % of the step's time: ")
    assert said[0].endswith("`underclock measure` goes on from here")


def test_where_the_step_was_not_timed_nothing_is_told_and_nothing_planned() -> None:
    campaign = having(_campaign(1e-3, 400.0), mixed=())

    assert not len(unmeasured(campaign).places)
    with pytest.raises(DataError, match="no sample of 'k4'"):
        cost_table(campaign)
