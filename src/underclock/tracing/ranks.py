"""Steps of several processes, as ``torchrun`` starts them.

Each rank traces its own GPU. The first of them measures, and the others run what it runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from underclock.core.tracing.host import ranks_of
from underclock.core.tracing.recapture import difference
from underclock.errors import DataError, NotSupportedError, UsageError
from underclock.records import Step
from underclock.store import read_document

_RANK, _WORLD, _LOCAL = "RANK", "WORLD_SIZE", "LOCAL_RANK"
_PAIRWISE = ("::send", "::recv", "::recv_", "::coalesced")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRank:
    """One of several processes that train together.

    Attributes:
        number: Its own, from 0 on.
        world: How many there are.
        local: Its number among those of its machine.
    """

    number: int
    world: int
    local: int = 0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "ProcessRank | None":
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
        if world == 1:
            return None
        local = environment.get(_LOCAL, "0")
        return cls(number=number, world=world, local=int(local) if local.isdecimal() else 0)

    @classmethod
    def needed(cls, step: Step, environment: Mapping[str, str]) -> "ProcessRank | None":
        """Return which rank of a step this process runs; ``None`` where it waits for no other.

        Raises:
            NotSupportedError: It has collectives, which would wait for ever for ranks that do not
                run.
            UsageError: The environment makes no sense.
        """
        launches = [kernel.launch for kernel in step.kernels if kernel.launch is not None]
        ranks = max((ranks_of(one.operator, one.shapes) for one in launches), default=1)
        if ranks == 1:
            return None
        rank = cls.of(environment)
        if rank is None or rank.world < ranks:
            here = "runs alone" if rank is None else f"is one of {rank.world}"
            raise NotSupportedError(
                f"{step.name} has collectives among {ranks} ranks, which wait for one another, and "
                f"this process {here}",
                hint="measure it as it is trained: torchrun --nproc-per-node GPUS -m underclock "
                "measure ...",
            )
        return rank

    @property
    def leads(self) -> bool:
        """Whether it is the one that measures."""
        return self.number == 0

    def gpu(self, index: int) -> int:
        """Return its GPU, where the first rank of its machine has the one of an index."""
        return index + self.local

    def own_gpu(self, *, there: int, current: int) -> int | None:
        """Return the GPU that it should make current; ``None`` where it need not.

        Args:
            there: How many GPUs the process sees.
            current: Which is current; another than the first was chosen by somebody.
        """
        return self.local if current == 0 < self.local < there else None

    def file(self, path: Path) -> Path:
        """Return where a rank writes what all of them write: ``step.rank0.json``."""
        return path.with_name(f"{path.stem}.rank{self.number}{path.suffix}")

    def own(self, path: Path) -> Path:
        """Return what a rank reads where all are given one file: its own, if there is one."""
        return mine if (mine := self.file(path)).is_file() else path


def told_of_ranks(step: Step, path: Path, rank: ProcessRank) -> tuple[str, ...]:
    """Say of which other ranks, as far as they have written theirs, the step is another.

    Stages of a pipeline, which send to one another, run different steps: of them nothing is said.
    """
    told: list[str] = []
    launches = (kernel.launch for kernel in step.kernels)
    if any(one is not None and one.operator.endswith(_PAIRWISE) for one in launches):
        return ()
    for number in range(rank.world):
        other = ProcessRank(number=number, world=rank.world).file(path)
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
