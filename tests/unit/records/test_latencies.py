"""What a table of latencies holds, and what it answers for switches that nobody sampled."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_switches import switch
from underclock.errors import DataError
from underclock.records import Evidence, GpuInfo
from underclock.records.latencies import LatencyTable, Switch
from underclock.units import Domain

_GPU = GpuInfo(name="G", driver="580")
_CORE, _MEMORY = Domain.CORE, Domain.MEMORY

clocks = st.none() | st.integers(10, 3000)
durations = st.floats(0.0, 1.0)


def _switch(
    from_mhz: int | None,
    to_mhz: int | None,
    delay_s: float,
    *,
    domain: Domain = Domain.CORE,
    stall_s: float = 0.0,
) -> Switch:
    jitter_s, mhz = 0.05 * delay_s, (from_mhz, to_mhz)
    one = switch(domain, delay_s, mhz=mhz, call_s=5e-3, jitter_s=jitter_s, stall_s=stall_s)
    return msgspec.structs.replace(one, outliers=1)


def _table(*switches: Switch) -> LatencyTable:
    return LatencyTable(evidence=Evidence.SIMULATED, gpu=_GPU, switches=switches)


_TABLE = _table(
    _switch(600, 1200, 0.03),
    _switch(1800, 1200, 0.02),
    _switch(1200, 600, 0.01),
    _switch(1200, 1800, 0.05),
    _switch(1200, None, 0.04),
    _switch(5001, 9501, 0.1, domain=Domain.MEMORY, stall_s=0.01),
    _switch(9501, 5001, 0.105, domain=Domain.MEMORY),
)


@pytest.mark.parametrize(
    ("domain", "from_mhz", "to_mhz", "expected_s"),
    [
        (_CORE, 1800, 1200, 0.02),  # sampled
        (_CORE, 900, 1200, 0.03),  # the slower of its origins
        (_CORE, 600, 900, 0.03),  # between 600 and 1200: the slower
        (_CORE, 600, 1500, 0.05),
        (_CORE, 600, 300, 0.01),  # below all: the lowest
        (_CORE, 600, 2100, 0.05),
        (_CORE, 600, None, 0.04),
        (_MEMORY, 5001, None, 0.1),  # auto was not sampled: the slowest there, its stall counted
    ],
)
def test_a_switch_is_answered_by_what_was_sampled_near_it(
    domain: Domain, from_mhz: int | None, to_mhz: int | None, expected_s: float
) -> None:
    assert _TABLE.answer(domain, from_mhz, to_mhz).delay_s == expected_s


@given(st.lists(st.tuples(clocks, clocks, durations), min_size=1, max_size=12), clocks, clocks)
def test_an_answer_is_a_sampled_switch_and_never_faster_than_the_fastest(
    rows: list[tuple[int | None, int | None, float]], from_mhz: int | None, to_mhz: int | None
) -> None:
    distinct = {(one, other): delay_s for one, other, delay_s in rows}
    table = _table(*(_switch(one, other, delay_s) for (one, other), delay_s in distinct.items()))

    found = table.answer(_CORE, from_mhz, to_mhz)

    assert found in table.switches
    if (from_mhz, to_mhz) not in distinct and to_mhz in {other for _, other in distinct}:
        assert found.delay_s == max(d for (_, other), d in distinct.items() if other == to_mhz)


@given(clocks, clocks, durations, st.sampled_from(Domain))
def test_an_assumed_latency_is_the_same_everywhere(
    from_mhz: int | None, to_mhz: int | None, duration_s: float, domain: Domain
) -> None:
    table = LatencyTable.constant(duration_s)

    assert table.answer(domain, from_mhz, to_mhz).delay_s == duration_s
    assert LatencyTable.free().answer(domain, from_mhz, to_mhz).delay_s == 0.0
    assert table.evidence is None
    assert table.gpu is None
    assert table.check_gpu(_GPU) == ()


def test_a_table_of_another_gpu_is_refused_and_another_driver_is_told() -> None:
    assert _TABLE.check_gpu(_GPU) == ()
    assert "driver 580, and this is driver unknown" in _TABLE.check_gpu(GpuInfo(name="G"))[0]
    with pytest.raises(DataError, match="those of G, not of H") as caught:
        _TABLE.check_gpu(GpuInfo(name="H", driver="580"))
    assert "such as 6ms" in caught.value.hint


def test_what_no_switch_can_be_is_refused_by_name() -> None:
    good = msgspec.to_builtins(_switch(600, 1200, 0.03))
    for change, sentence in (
        ({"delay_s": -0.1}, ">= 0.0 - at `\\$.delay_s`"),
        ({"stall_s": float("inf")}, "<= 60.0 - at `\\$.stall_s`"),
        ({"from_mhz": 0}, ">= 10 - at `\\$.from_mhz`"),
        ({"to_mhz": 20_001}, "<= 20000 - at `\\$.to_mhz`"),
        ({"delay_p05_s": 0.031}, "between delay_p05_s and delay_p95_s"),
        ({"outliers": -1}, ">= 0 - at `\\$.outliers`"),
        ({"domain": "fan"}, "Invalid enum value 'fan'"),
        ({"latency_s": 1.0}, "unknown field `latency_s`"),
    ):
        with pytest.raises(msgspec.ValidationError, match=sentence):
            msgspec.convert(good | change, Switch)
    for name in ("call_s", "delay_s", "jitter_s", "stall_s", "to_mhz"):
        lacking = {key: value for key, value in good.items() if key != name}
        with pytest.raises(msgspec.ValidationError, match=f"required field `{name}`"):
            msgspec.convert(lacking, Switch)


def test_a_table_says_something_and_one_thing_only() -> None:
    with pytest.raises(ValueError, match="at least one switch"):
        _table()
    with pytest.raises(ValueError, match="one row for each switch"):
        _table(_switch(600, 1200, 0.03), _switch(600, 1200, 0.02))
