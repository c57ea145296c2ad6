"""What came of a fault, and how a row says what to do; see `faults.py`."""

import functools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import faults_training
from faults_rig import Rig, Trial

STOOD_STILL = r"no mark was seen[^\n]*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a row.

    Attributes:
        as_found: Whether locks, limit and persistence are as found, and no journal is left.
        took_s: How long after the end of what held them; ``None`` where nothing was held.
        losses: Whether they are those of the plain training, as far as it went; ``None`` where
            nothing trained.
        said: What the user was told.
    """

    as_found: bool
    took_s: float | None
    losses: bool | None
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault.

    Attributes:
        name: Of the fault.
        did: What was done.
        says: A regular expression of what the user must be told; empty where nothing need be.
        play: Does it.
    """

    name: str
    did: str
    says: str
    play: Callable[[Rig], Outcome]

    def sentence(self, seen: Outcome) -> str:
        """Return what was told; empty where it was not."""
        found = re.search(self.says, seen.said)
        return found[0] if found else ""

    def was_told(self, seen: Outcome) -> bool:
        """Whether the user was told, where there is something to tell."""
        return not self.says or bool(self.sentence(seen))


@functools.cache
def plain_losses(how: str, steps: int) -> tuple[float, ...]:
    """Return the losses of a training without any of this."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "losses"
        command = [sys.executable, faults_training.__file__, str(steps), str(file), how]
        subprocess.run(command, check=how != "breaks", capture_output=True)
        return losses_in(file)


def losses_in(file: Path) -> tuple[float, ...]:
    """Return the losses that a training wrote; none where it never began."""
    if not file.exists():
        return ()
    return tuple(json.loads(line) for line in file.read_text().splitlines())


def outcome(trial: Trial, *, killed: bool = False) -> Outcome:
    """Wait for the end of a run, and look.

    Args:
        trial: The run.
        killed: Whether training was: then its losses are compared as far as they go.
    """
    trial.wait()
    losses, usual = losses_in(trial.losses), plain_losses(trial.how, trial.steps)
    same = losses == (usual[: len(losses)] if killed else usual) and bool(losses)
    return Outcome(
        as_found=trial.rig.is_clean() and doctor_finds_nothing(trial.rig),
        took_s=trial.took_s(),
        losses=same,
        said=trial.said(),
    )


def doctor_finds_nothing(rig: Rig) -> bool:
    """Whether `underclock doctor` shows no lock, and the power limit that was found."""
    found = json.loads(rig.command("doctor", "--json").stdout)["gpus"]
    real = [gpu for gpu in found if gpu["spec"].startswith("nvml:")]
    none = {(gpu["locked_core_mhz"], gpu["locked_mem_mhz"]) for gpu in real} == {(None, None)}
    return none and {gpu["power_limit_w"] for gpu in real} <= {rig.found[2]}
