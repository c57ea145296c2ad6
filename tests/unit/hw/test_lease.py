"""The lease against a fake GPU that writes down what is done to it."""

from collections.abc import Callable

import pytest

from underclock.errors import NotAppliedError, NotPermittedError
from underclock.hw.lease import check_applied, clock_lease
from underclock.records import AUTO, POWER_CAP_REASON, Clocks, GpuInfo, Utilisation

_LOW = Clocks(core_mhz=900, mem_mhz=5001)


class FakeGpu:
    """Runs at whatever it is told to report."""

    def __init__(self, seen: Clocks = AUTO, reasons: int = 0, *, refuse: bool = False) -> None:
        self.seen, self.reasons, self.refuse = seen, reasons, refuse
        self.done: list[str] = []

    def info(self) -> GpuInfo:
        return GpuInfo(name="fake")

    def supported_mem_mhz(self) -> tuple[int, ...]:
        return (5001,)

    def supported_core_mhz(self, mem_mhz: int | None = None) -> tuple[int, ...]:
        del mem_mhz
        return (900,)

    def observed(self) -> Clocks:
        return self.seen

    def energy_j(self) -> float:
        return 0.0

    def power_w(self) -> float:
        return 1.0

    def temperature_c(self) -> float:
        return 40.0

    def event_reasons(self) -> int:
        return self.reasons

    def utilisation(self) -> Callable[[], Utilisation | None]:
        return lambda: None

    def lock(self, clocks: Clocks) -> None:
        self.done.append(f"lock {clocks}")
        if self.refuse:
            raise NotPermittedError("no")

    def unlock(self) -> None:
        self.done.append("unlock")


def test_auto_clocks_write_nothing() -> None:
    gpu = FakeGpu()
    with clock_lease(gpu, AUTO):
        pass

    assert gpu.done == []


def test_a_refused_lock_is_undone_too() -> None:
    gpu = FakeGpu(refuse=True)
    with pytest.raises(NotPermittedError), clock_lease(gpu, _LOW):
        pytest.fail("the block must not run")

    assert gpu.done == [f"lock {_LOW}", "unlock"]


def test_an_error_in_the_block_unlocks_and_goes_on() -> None:
    gpu = FakeGpu()
    with pytest.raises(ZeroDivisionError), clock_lease(gpu, _LOW):
        raise ZeroDivisionError

    assert gpu.done[-1] == "unlock"


def test_clocks_as_asked_are_returned() -> None:
    assert check_applied(FakeGpu(_LOW), _LOW) == _LOW


def test_a_core_below_the_lock_is_physics() -> None:
    seen = Clocks(core_mhz=885, mem_mhz=5001)

    assert check_applied(FakeGpu(seen), _LOW) == seen


def test_a_core_above_the_lock_is_not_applied() -> None:
    seen = Clocks(core_mhz=1900, mem_mhz=5001)
    with pytest.raises(NotAppliedError, match="core asked 900 MHz, found 1900 MHz"):
        check_applied(FakeGpu(seen), _LOW)


def test_a_memory_elsewhere_is_not_applied_unless_power_explains_it() -> None:
    seen = Clocks(core_mhz=900, mem_mhz=9501)
    with pytest.raises(NotAppliedError, match="memory asked 5001 MHz, found 9501 MHz"):
        check_applied(FakeGpu(seen), _LOW)

    assert check_applied(FakeGpu(seen, POWER_CAP_REASON), _LOW) == seen
