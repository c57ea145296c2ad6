"""Faults of the GPU and its driver, and plans for something else; see `faults.py`."""

import dataclasses
from collections.abc import Callable

import msgspec

from faults_outcome import STOOD_STILL, Outcome, Row, outcome
from faults_rig import CLOCK, STEPS, Rig, Trial
from small_training import plan, with_memory
from underclock.records import GpuInfo, Plan


def _fault(
    name: str, value: float | None = None, *, heals_after_s: float | None = None, steps: int = STEPS
) -> Callable[[Rig], Outcome]:
    """Return a row in which something goes wrong with the GPU while a clock is locked."""

    def play(rig: Rig) -> Outcome:
        trial = Trial(rig, steps=steps).held().set_now()
        rig.control.fault(name, value, gpu=0)
        if heals_after_s is not None:
            CLOCK.sleep_s(heals_after_s)
            rig.control.heal(gpu=0)
        return outcome(trial)

    return play


def _healed_after_the_end(name: str) -> Callable[[Rig], Outcome]:
    """Return a row whose fault outlives training by two seconds."""

    def play(rig: Rig) -> Outcome:
        trial = Trial(rig).held().set_now()
        rig.control.fault(name, gpu=0)
        trainer = trial.trainer
        trial.until(lambda: not trainer.lives)
        CLOCK.sleep_s(2.0)
        rig.control.heal(gpu=0)
        trial.ended_s = CLOCK.now_s()
        trial.until(rig.is_clean, 15.0)
        return outcome(trial)

    return play


def _limit_changed(rig: Rig) -> Outcome:
    trial = Trial(rig).held()
    rig.control.fault("power_limit_changed", 320.0, gpu=0)
    trial.wait()
    left = rig.control.truth()["limit_w"] == 320.0  # noqa: PLR2004 - it is theirs
    rig.control.fault("power_limit_changed", float(str(rig.found[2])), gpu=0)
    seen = outcome(trial)
    return dataclasses.replace(seen, as_found=seen.as_found and left, took_s=None)


def _memory_refused_at_first(rig: Rig) -> Outcome:
    rig.control.fault("memory_refused", gpu=0)
    trial = Trial(rig, held=with_memory(plan()))
    trial.wait()
    rig.control.heal()
    return Outcome(as_found=rig.is_clean(), took_s=None, losses=None, said=trial.said())


def _memory_refused_meanwhile(rig: Rig) -> Outcome:
    trial = Trial(rig, held=with_memory(plan())).held().set_now()
    rig.control.fault("memory_refused", gpu=0)
    seen = outcome(trial)
    rig.control.heal()
    return seen


def _refused(held: Plan) -> Callable[[Rig], Outcome]:
    """Return a row whose plan must not be held here."""

    def play(rig: Rig) -> Outcome:
        trial = Trial(rig, held=held)
        code = trial.wait()
        started = trial.losses.exists() or code == 0
        return Outcome(
            as_found=rig.is_clean() and not started, took_s=None, losses=None, said=trial.said()
        )

    return play


def _of(**gpu: object) -> Plan:
    return plan(gpu=GpuInfo(**{"name": "RTX 3080 Ti", "power_limit_w": 350.0, **gpu}))  # type: ignore[arg-type]


def another_step() -> Plan:
    """Return a plan of a model with other modules."""
    made = plan()
    modules = tuple(f"other.{name}" if name else name for name in made.modules)
    return msgspec.structs.replace(made, modules=modules)


_HEAT = "because it is too hot|under its temperature"

ROWS = (
    Row(
        name="permission revoked",
        did="until 2 s after training",
        says="the driver refused .*?;",
        play=_healed_after_the_end("permission_revoked"),
    ),
    Row(
        name="permission revoked",
        did="for 1 s",
        says="the core was given back to the driver",
        play=_fault("permission_revoked", heals_after_s=1.0),
    ),
    Row(
        name="setter fails half-way",
        did="memory refused from the start",
        says="could not lock the memory.*",
        play=_memory_refused_at_first,
    ),
    Row(
        name="setter fails half-way",
        did="memory refused while running",
        says="the driver refused memory.*?;",
        play=_memory_refused_meanwhile,
    ),
    Row(
        name="setter hangs",
        did="each 10 s",
        says="the conductor has not answered.*",
        play=_fault("setter_hangs", 10.0, heals_after_s=12.0, steps=200),
    ),
    Row(
        name="GPU lost",
        did="until 2 s after training",
        says="[^;:]*GPU is lost",
        play=_healed_after_the_end("gpu_lost"),
    ),
    Row(
        name="energy counter",
        did="begins again at zero",
        says="the energy counter fell .*",
        play=_fault("counter_restarts"),
    ),
    Row(
        name="energy counter",
        did="stands still for 2 s",
        says="the energy counter stands still.*",
        play=_fault("counter_stuck", heals_after_s=2.0),
    ),
    Row(
        name="counter of marks",
        did="stuck for 1.5 s",
        says=STOOD_STILL,
        play=_fault("marks_stuck", heals_after_s=1.5),
    ),
    Row(
        name="counter of marks",
        did="backwards for 1.5 s",
        says="",
        play=_fault("marks_backwards", heals_after_s=1.5),
    ),
    Row(
        name="locks ineffective",
        did="accepted, not followed, for 8 s",
        says="core .* does not follow it.*",
        play=_fault("locks_ignored", heals_after_s=8.0, steps=110),
    ),
    Row(
        name="thermal slowdown",
        did="the driver's, for 2 s",
        says=_HEAT,
        play=_fault("soft_slowdown", heals_after_s=2.0),
    ),
    Row(
        name="thermal slowdown",
        did="the hardware's, for 2 s",
        says=_HEAT,
        play=_fault("hard_slowdown", heals_after_s=2.0),
    ),
    Row(
        name="power limit changed by another",
        did="350 to 320 W, which stays",
        says="somebody changed the power limit.*",
        play=_limit_changed,
    ),
    Row(
        name="plan for another GPU",
        did="RTX 4090",
        says="the plan is for .*",
        play=_refused(_of(name="RTX 4090")),
    ),
    Row(
        name="plan for another board",
        did="another UUID",
        says="the plan was made on board .*?[:;]",
        play=_refused(_of(uuid="GPU-1")),
    ),
    Row(
        name="plan for another driver",
        did="1.2",
        says="made under driver .*",
        play=_refused(_of(driver="1.2")),
    ),
    Row(
        name="plan for another limit",
        did="300 W",
        says="a power limit of 300 W.*",
        play=_refused(_of(power_limit_w=300.0)),
    ),
    Row(
        name="plan for another step",
        did="of other modules",
        says="the step is not the plan's.*",
        play=lambda rig: outcome(Trial(rig, held=another_step())),
    ),
)
