"""Steps of several processes, as ``torchrun`` starts them: each rank traces its own GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from underclock.core.tracing.collectives import ranks_of
from underclock.core.tracing.recapture import difference
from underclock.errors import DataError, NotSupportedError, UsageError
from underclock.records import Step
from underclock.store import read_document

_RANK, _WORLD, _LOCAL = "RANK", "WORLD_SIZE", "LOCAL_RANK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One of several processes that train together.

    Attributes:
        number: Its own, from 0 on.
        world: How many there are.
    """

    number: int
    world: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Rank | None":
        """Return this process's rank, as ``torchrun`` tells it; ``None`` for a process alone.

        Raises:
            UsageError: What it tells makes no sense.
        """
        told = environment.get(_RANK, "0"), environment.get(_WORLD, "1")
        if not all(text.isdecimal() for text in told) or int(told[0]) >= int(told[1]):
            raise UsageError(
                f"{_RANK}={told[0]} and {_WORLD}={told[1]} are no rank of so many processes",
                hint="start with torchrun, or unset both",
            )
        number, world = map(int, told)
        return cls(number=number, world=world) if world > 1 else None

    def file(self, path: Path) -> Path:
        """Return where a rank writes what all of them write: ``step.rank0.json``."""
        return path.with_name(f"{path.stem}.rank{self.number}{path.suffix}")


def own_gpu(environment: Mapping[str, str], *, there: int, current: int) -> int | None:
    """Return the GPU that a rank should make current; ``None`` where it need not.

    Args:
        environment: With the rank on its machine, as ``torchrun`` tells it.
        there: How many GPUs the process sees.
        current: Which is current; another than the first was chosen by somebody.
    """
    told = environment.get(_LOCAL, "0")
    local = int(told) if told.isdecimal() else 0
    return local if current == 0 < local < there else None


def told_of_ranks(step: Step, path: Path, rank: Rank) -> tuple[str, ...]:
    """Say of which other ranks, as far as they have written theirs, the step is another.

    Args:
        step: Of this rank.
        path: Where steps are written, without a rank.
        rank: This one.
    """
    told = []
    for number in range(rank.world):
        other = Rank(number=number, world=rank.world).file(path)
        if number == rank.number or not other.is_file():
            continue
        try:
            words = difference(step, read_document(other, Step))
        except DataError:
            continue  # it is being written
        if words is not None:
            told.append(
                f"rank {number} runs another step than rank {rank.number}, according to "
                f"{other.name}: {words}"
            )
    return tuple(told)


def check_runs_alone(step: Step) -> None:
    """Refuse to run a step over and over that waits for other ranks.

    Raises:
        NotSupportedError: It has collectives, which would wait for ever for ranks that do not run.
    """
    launches = [kernel.launch for kernel in step.kernels if kernel.launch is not None]
    ranks = max((ranks_of(one.operator, one.shapes) for one in launches), default=1)
    if ranks > 1:
        raise NotSupportedError(
            f"{step.name} has collectives among {ranks} ranks, which would wait for one another",
            hint="it can be traced, but not measured yet: measure the same model on one GPU",
        )
