"""Which repeats and which rows are odd, and how much each repeat counts."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisy_tables import noisy_samples, run_table
from score import run_variances
from underclock.app.planning import plan
from underclock.core.model.sample_sets import odd_repeats, odd_rows, sample_weights
from underclock.core.planning.best_choice import Goal
from underclock.records import AUTO, Clocks, Evidence, GpuInfo, Kernel, SampleSet, Window
from windows import having

CORES = (*range(600, 1500, 150), 1900)
MEMS = (5001, 9251)


def table(odd: tuple[str, int, int] | None = None, factor: float = 1.0, seed: int = 0) -> SampleSet:
    """Return a smooth table of three kernels, one row of it wrong."""
    random = np.random.default_rng(seed)
    samples = []
    for name, bound in (("core", 1.0), ("memory", 0.1), ("both", 0.5)):
        for mem_mhz in MEMS:
            for core_mhz in CORES:
                time_s = bound * 1000 / core_mhz + (1 - bound) * 5000 / mem_mhz
                power_w = 50 + 100 * (core_mhz / 1500) ** 2.5 + mem_mhz / 500
                wrong = factor if odd == (name, mem_mhz, core_mhz) else 1.0
                samples.append(
                    Window(
                        kernel=name,
                        asked=Clocks(core_mhz=core_mhz, mem_mhz=mem_mhz),
                        time_s=time_s * float(np.exp(0.005 * random.standard_normal())),
                        energy_j=time_s * power_w * wrong,
                    )
                )
        fastest = samples[-1]
        samples.append(msgspec.structs.replace(fastest, asked=AUTO))
    names = dict.fromkeys(sample.kernel for sample in samples)
    return SampleSet(
        evidence=Evidence.REPLAYED,
        gpu=GpuInfo(name="G"),
        workload="t.csv",
        kernels=tuple(Kernel(name=name) for name in names),
        windows=tuple(samples),
        expected_samples=len(samples),
        settings=tuple(dict.fromkeys(sample.asked for sample in samples)),
    )


def test_odd_repeats_are_told_and_weighed() -> None:
    samples = noisy_samples("a", 0.005, 0)
    set_ = run_table(samples)
    assert odd_repeats(set_) == ()
    assert (sample_weights(set_) == 1.0).all()
    place = 7
    odd = samples[place]
    samples[place] = msgspec.structs.replace(odd, energy_j=2.0 * odd.energy_j)

    (sentence,) = odd_repeats(run_table(samples))
    assert "1 of 45 repeats is odd, most of all 'a'" in sentence
    assert str(odd.asked) in sentence
    assert "% energy" in sentence
    assert np.flatnonzero(sample_weights(run_table(samples))[1] < 1.0).tolist() == [place]
    off = run_variances(run_table(samples))[1]
    assert np.median(off) < 0.01**2  # that of an ordinary run is as runs usually scatter
    assert math.sqrt(off[place]) == pytest.approx(math.log(2.0), rel=0.05)

    samples[place + 1] = msgspec.structs.replace(
        samples[place + 1], time_s=0.1 * samples[place + 1].time_s
    )
    samples[20] = msgspec.structs.replace(samples[20], time_s=2.0 * samples[20].time_s)
    assert "repeats are odd" in odd_repeats(run_table(samples))[0]


def test_nothing_repeated_is_nothing_odd() -> None:
    set_ = run_table(noisy_samples("a", 0.3, 0, repeats=1))

    assert odd_repeats(set_) == ()
    assert (sample_weights(set_) == 1.0).all()
    assert set_.is_exact
    assert not msgspec.structs.replace(set_, sampled=True).is_exact
    assert not run_table(noisy_samples("a", 0.3, 0)).is_exact


@given(
    st.sampled_from(["core", "memory", "both"]),
    st.sampled_from(MEMS),
    st.sampled_from(CORES),
    st.sampled_from([0.01, 0.1, 20.0, 1000.0]),
    st.integers(0, 20),
)
def test_one_wrong_row_is_named_and_no_other(
    kernel: str, mem_mhz: int, core_mhz: int, factor: float, seed: int
) -> None:
    (said,) = odd_rows(table((kernel, mem_mhz, core_mhz), factor, seed))

    assert said.startswith("1 row is far off")
    assert f"{kernel!r} at core {core_mhz} MHz, memory {mem_mhz} MHz: energy is" in said


@given(st.integers(0, 100))
def test_rows_that_follow_each_other_are_not_doubted(seed: int) -> None:
    assert odd_rows(table(seed=seed)) == ()


def test_few_rows_tell_nothing_of_each_other() -> None:
    whole = table(("core", 5001, 900), 0.01)
    few = tuple(s for s in whole.samples if s.asked.core_mhz in {None, 600, 900, 1200, 1350})
    assert odd_rows(having(whole, samples=few)) == ()


@pytest.mark.parametrize("raw", [None, True])
def test_a_plan_on_a_table_with_a_wrong_row_says_so(*, raw: bool | None) -> None:
    wrong = table(("both", 9251, 1050), 0.01)
    made = plan(wrong, Goal(max_slowdown=0.5), raw=raw)

    (said,) = [sentence for sentence in made.warnings if "far off" in sentence]
    assert "'both' at core 1050 MHz, memory 9251 MHz" in said
    assert not any("far off" in each for each in plan(table(), Goal(), raw=raw).warnings)
