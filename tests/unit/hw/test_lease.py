"""The lease against a fake GPU that writes down what is done to it."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from fake_gpu import SteadyGpu
from underclock.errors import DeviceError, NotAppliedError, NotPermittedError, UsageError
from underclock.hw import interrupts, lease
from underclock.hw.interrupts import INTERRUPTS, interrupts_deferred
from underclock.hw.lease import NOTHING_LOCKED, ClockLeases, check_applied
from underclock.records import AUTO, Clocks, ThrottleReason

_CORE, _MEMORY = Clocks(core_mhz=900), Clocks(mem_mhz=5001)
_LOW = Clocks(core_mhz=900, mem_mhz=5001)


class FakeGpu(SteadyGpu):
    """Runs at whatever it is told to report; notes what is locked, and by whose call."""

    mems_mhz, cores_mhz = (5001,), (900,)

    def __init__(
        self,
        seen: Clocks = AUTO,
        reasons: ThrottleReason = ThrottleReason.NONE,
        *,
        refuses: Clocks | None = None,
        keeps: bool = False,
    ) -> None:
        self.seen, self.reasons, self.refuses, self.keeps = seen, reasons, refuses, keeps
        self.done: list[str] = []
        self.locked: set[Clocks] = set()

    def lock(self, clocks: Clocks) -> None:
        if clocks == self.refuses:
            raise NotPermittedError(f"could not lock {clocks}")
        self.locked.add(clocks)
        self.done.append(f"lock {clocks}")

    def unlock(self) -> None:
        if self.keeps:
            raise DeviceError("could not unlock the core", hint="paste this line")
        self.locked.clear()
        self.done.append("unlock")


def _leave(leases: ClockLeases, error: BaseException | None = None) -> None:
    leases.__exit__(type(error) if error else None, error, None)


def test_auto_clocks_write_nothing() -> None:
    gpu = FakeGpu()
    with ClockLeases(gpu) as leases, leases.hold(AUTO):
        pass

    assert gpu.done == []


def test_clocks_are_held_in_the_block_and_given_back_once() -> None:
    gpu = FakeGpu()
    with ClockLeases(gpu) as leases:
        with leases.hold(_LOW):
            assert gpu.locked == {_CORE, _MEMORY}
        with leases.hold(_CORE):
            assert gpu.locked == {_CORE}

    assert gpu.done == [
        f"lock {_CORE}",
        f"lock {_MEMORY}",
        "unlock",
        f"lock {_CORE}",
        "unlock",
    ]


@pytest.mark.parametrize("refused", [_CORE, _MEMORY])
def test_a_refused_lock_is_undone_too(refused: Clocks) -> None:
    gpu = FakeGpu(refuses=refused)
    with pytest.raises(NotPermittedError), ClockLeases(gpu) as leases, leases.hold(_LOW):
        pytest.fail("the block must not run")

    assert gpu.done[-1] == "unlock"
    assert gpu.locked == set()


def test_an_error_in_the_block_unlocks_and_goes_on() -> None:
    gpu = FakeGpu()
    with pytest.raises(ZeroDivisionError), ClockLeases(gpu) as leases, leases.hold(_LOW):
        raise ZeroDivisionError

    assert gpu.done[-1] == "unlock"


def test_a_lease_inside_another_is_refused_and_the_outer_one_stays() -> None:
    gpu = FakeGpu()
    with ClockLeases(gpu) as leases, leases.hold(_LOW):
        with pytest.raises(UsageError, match="other clocks of this GPU are held") as refused:
            leases.hold(_CORE).__enter__()
        assert gpu.locked == {_CORE, _MEMORY}
        with leases.hold(AUTO):  # writes nothing, so it takes nothing away
            pass
        assert gpu.locked == {_CORE, _MEMORY}

    assert "end that lease first" in refused.value.hint
    assert gpu.locked == set()


class TestFailedUndo:
    def test_it_is_told_where_nothing_else_went_wrong(self) -> None:
        with (
            pytest.raises(DeviceError, match="STAY locked: could not unlock the core") as caught,
            ClockLeases(FakeGpu(keeps=True)) as leases,
            leases.hold(_LOW),
        ):
            pass

        assert caught.value.hint == "paste this line"
        assert not hasattr(caught.value, "__notes__")

    @pytest.mark.parametrize("error", [ZeroDivisionError("first"), KeyboardInterrupt("first")])
    def test_it_never_hides_the_first_error(self, error: BaseException) -> None:
        with (
            pytest.raises(type(error), match="first") as caught,
            ClockLeases(FakeGpu(keeps=True)) as leases,
            leases.hold(_LOW),
        ):
            raise error

        (note,) = caught.value.__notes__
        assert note == "the clocks STAY locked: could not unlock the core; paste this line"

    def test_it_is_told_at_the_end_where_the_first_error_was_mended(self) -> None:
        leases = ClockLeases(FakeGpu(keeps=True))
        with pytest.raises(ZeroDivisionError), leases.hold(_LOW):
            raise ZeroDivisionError
        with pytest.raises(DeviceError, match="STAY locked"):
            _leave(leases)

    def test_a_later_undo_mends_it(self) -> None:
        gpu = FakeGpu(keeps=True)
        leases = ClockLeases(gpu)
        with pytest.raises(DeviceError), leases.hold(_LOW):
            pass
        gpu.keeps = False
        with leases.hold(_CORE):
            pass
        _leave(leases)

        assert gpu.locked == set()

    @pytest.mark.parametrize("refused", [_CORE, _MEMORY])
    def test_a_lock_stays_where_the_driver_took_one(self, refused: Clocks) -> None:
        gpu = FakeGpu(refuses=refused, keeps=True)
        with (
            pytest.raises(NotPermittedError, match="could not lock") as caught,
            ClockLeases(gpu) as leases,
            leases.hold(_LOW),
        ):
            pytest.fail("the block must not run")
        notes = getattr(caught.value, "__notes__", [])
        assert [note for note in notes if "STAY locked" in note] == notes
        assert len(notes) == (refused == _MEMORY)


class TestWhatAnInterruptIsToldOf:
    def test_nothing_is_left_locked_where_that_is_known(self) -> None:
        with (
            pytest.raises(KeyboardInterrupt) as caught,
            ClockLeases(FakeGpu()) as leases,
            leases.hold(_LOW),
        ):
            raise KeyboardInterrupt

        assert caught.value.__notes__ == [NOTHING_LOCKED]

    def test_an_error_is_told_nothing(self) -> None:
        with pytest.raises(ZeroDivisionError) as caught, ClockLeases(FakeGpu()):
            raise ZeroDivisionError
        assert not hasattr(caught.value, "__notes__")


def test_a_child_leaves_the_undo_to_its_parent() -> None:
    gpu = FakeGpu()
    with ClockLeases(gpu) as leases, leases.hold(_LOW):
        child = os.fork()
        if not child:  # it ends here, whatever happens
            code = 1
            try:
                with pytest.raises(SystemExit), leases.hold(AUTO):
                    raise SystemExit
                _leave(leases, SystemExit())
                code = 0 if gpu.locked == {_CORE, _MEMORY} and "unlock" not in gpu.done else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert gpu.done[-1] == "unlock"


_TRACED = {contextlib.__file__, interrupts.__file__, lease.__file__, __file__}


def _use(gpu: FakeGpu) -> None:
    with ClockLeases(gpu) as leases, leases.hold(_LOW):
        gpu.observed()


def _interrupted_at(place: int, gpu: FakeGpu, interrupt: Callable[[], None]) -> int:
    """Use a lease, interrupted before the given byte code of it; return how many there were."""
    count = 0

    def step(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
            if count - 1 == place:
                interrupt()
        return step

    def enter(frame: FrameType, _event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename not in _TRACED:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        _use(gpu)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return count


def _raise() -> None:
    raise KeyboardInterrupt


def _signal() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.untraced
@pytest.mark.parametrize("interrupt", [_raise, _signal], ids=["raised", "by a signal"])
def test_an_interrupt_at_any_byte_code_leaves_nothing_locked(
    interrupt: Callable[[], None],
) -> None:
    handlers = [signal.getsignal(number) for number in INTERRUPTS]
    places = _interrupted_at(-1, FakeGpu(), interrupt)
    leaks = []
    for place in range(places):
        gpu = FakeGpu()
        _interrupted_at(place, gpu, interrupt)
        for number, handler in zip(INTERRUPTS, handlers, strict=True):
            signal.signal(number, handler)
        if gpu.locked:
            leaks.append(place)

    assert places > 300
    assert leaks == []


@contextlib.contextmanager
def _handled(number: int, handler: Callable[[int, FrameType | None], None] | int) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


class TestDeferredInterrupts:
    @pytest.mark.parametrize("number", INTERRUPTS)
    def test_they_come_when_the_block_is_over(self, number: signal.Signals) -> None:
        came: list[int] = []
        with _handled(number, lambda n, _frame: came.append(n)):
            with interrupts_deferred():
                signal.raise_signal(number)
                signal.raise_signal(number)
                assert came == []
            assert came == [number]
            signal.raise_signal(number)
            assert came == [number, number]

    def test_one_that_comes_while_handlers_are_put_back_is_not_lost(self) -> None:
        came: list[int] = []
        with _handled(signal.SIGTERM, lambda n, _frame: came.append(n)):
            with interrupts_deferred():
                waits = signal.getsignal(signal.SIGTERM)
            assert callable(waits)
            waits(signal.SIGTERM, None)
            assert came == [signal.SIGTERM]

    def test_what_is_ignored_stays_ignored(self) -> None:
        with _handled(signal.SIGHUP, signal.SIG_IGN), interrupts_deferred():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)

    def test_they_come_after_an_error_too(self) -> None:
        with pytest.raises(ZeroDivisionError), interrupts_deferred():
            raise ZeroDivisionError
        # A shell that starts the tests in the background lets them ignore interrupts.
        with (
            _handled(signal.SIGINT, signal.default_int_handler),
            pytest.raises(KeyboardInterrupt),
            interrupts_deferred(),
        ):
            signal.raise_signal(signal.SIGINT)

    def test_another_thread_has_none_to_wait_for(self) -> None:
        seen: list[object] = []

        def run() -> None:
            with interrupts_deferred():
                seen.append(signal.getsignal(signal.SIGINT))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert seen == [signal.getsignal(signal.SIGINT)]


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

    assert check_applied(FakeGpu(seen, ThrottleReason.SW_POWER_CAP), _LOW) == seen
