"""The fault matrix, row by row, as far as it is quick; `studies/faults.py` plays all of it.

Training is real, in this process: its losses must be those of a plain one, to the last bit.
"""

import os
import re
import signal
from pathlib import Path

import pytest

from fault_bench import Bench
from small_training import plan, with_memory
from underclock.hw.clock import SystemClock
from underclock.records.runs import StepLine
from underclock.runtime.undo.processes import Process
from underclock.stages.doctor import examine

_KILL, _STOP, _TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM


_GPU_FAULTS: tuple[tuple[str, float | None, str], ...] = (
    ("locks_ignored", None, "the driver accepted the lock and does not follow it"),
    ("soft_slowdown", None, "the driver keeps the GPU under its temperature"),
    ("hard_slowdown", None, "because it is too hot"),
    ("counter_restarts", None, "the energy counter fell from"),
    ("counter_stuck", None, "the energy counter stands still"),
    ("power_limit_changed", 320.0, "somebody changed the power limit from 350 to 320 W"),
    ("marks_stuck", None, "s: the step stands still"),
    ("gpu_lost", None, "the GPU cannot be read: "),
)


@pytest.mark.slow
def test_what_goes_wrong_with_a_gpu_is_told_and_harms_nothing(bench: Bench) -> None:
    """One after the other in one training, which saves the start of seven runs."""

    def befalls() -> None:
        bench.until("energy", lambda: bench.control.truth()["energy_j"] > 100.0)
        for fault, value, told in _GPU_FAULTS:
            before = bench.events().count(told)  # a busy machine holds a step up as well
            bench.control.fault(fault, value, gpu=0)
            bench.until(fault, lambda: bench.events().count(told) > before)  # noqa: B023 - at once
            bench.control.heal()
            if fault == "power_limit_changed":
                assert bench.state()[2] == value
                bench.control.fault(fault, 350.0, gpu=0)

    # With long stretches two readings of one lock tell that it is not followed.
    losses, usual = bench.train(befalls, plan(launch_s=8e-3))

    assert losses == usual
    assert bench.is_clean()
    found = examine("nvml:0").gpus[0]
    assert (found.locked_core_mhz, found.power_limit_w) == (None, 350.0)
    energies = [line.energy_j for line in bench.lines() if isinstance(line, StepLine)]
    assert None in energies
    assert 0.0 not in energies


def test_a_clock_that_is_refused_is_given_back_as_soon_as_may_be(bench: Bench) -> None:
    def befalls() -> None:
        for fault, told in (
            ("memory_refused", r"the driver refused memory 5001 MHz"),
            ("permission_revoked", r"the driver refused (core 1110 MHz|to give the core back)"),
        ):
            bench.control.fault(fault, gpu=0)
            bench.until(fault, lambda told=told: re.search(told, bench.events()))  # type: ignore[misc]
            bench.control.heal()
        for domain in ("memory", "core"):
            words = f"the {domain} was given back to the driver"
            bench.until(domain, lambda words=words: words in bench.events())  # type: ignore[misc]

    losses, usual = bench.train(befalls, with_memory(plan(launch_s=1e-3)))

    assert losses == usual
    assert bench.is_clean()


def test_what_does_not_end_a_run_leaves_it_as_it_was(
    bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    """A page that is unlinked, a suspended container, and a watcher that is killed."""

    def goes_on(what: str) -> None:
        before = bench.asks()
        bench.until(what, lambda: bench.asks() > before + 4)

    def befalls() -> None:
        pages = Path(f"/dev/shm/underclock-{os.getuid()}")  # noqa: S108 - where runs keep pages
        for page in pages.glob(f"run-{os.getpid()}-*.page"):
            page.unlink()
        goes_on("page")
        pids = bench.pids()
        for pid in reversed(pids):
            os.kill(pid, _STOP)
        SystemClock().sleep_s(0.5)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        goes_on("suspended")
        assert bench.pids() == pids
        os.kill(pids[1], _KILL)
        bench.until("watcher", lambda: bench.pids()[1] != pids[1])
        goes_on("watcher")

    losses, usual = bench.train(befalls)

    assert losses == usual
    assert bench.is_clean()
    assert not any("no more" in each for each in bench.told)
    assert "has ended, and is replaced by another" in capfd.readouterr().err


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("who", "number", "told"),
    [
        ("conductor", _TERM, "clocks are held no more: asked to end by SIGTERM"),
        ("conductor", _KILL, "the conductor ended; GPU"),
        ("conductor", _STOP, "the conductor was stopped; GPU"),
        ("both", _KILL, "clocks are held no more: .* ended .-9. and said nothing; core given back"),
    ],
)
def test_whoever_is_killed_clocks_are_given_back_and_training_goes_on(
    who: str, number: signal.Signals, told: str, bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    def befalls() -> None:
        conductor, watcher = bench.pids()
        bench.until("held", lambda: bench.state()[0] is not None)
        if who == "both":
            os.kill(conductor, _STOP)  # else it might start another watcher in between
            os.kill(watcher, number)
        os.kill(conductor, number)
        bench.until("ended", lambda: Process.of(conductor) is None or _is_zombie(conductor))
        if who == "conductor":
            bench.until("as found", bench.is_clean)

    losses, usual = bench.train(befalls)

    assert losses == usual
    assert bench.is_clean()
    said = "\n".join([*bench.told, capfd.readouterr().err])
    assert re.search(told, said), said


def _is_zombie(pid: int) -> bool:
    found = Process.of(pid)
    return found is not None and not found.lives
