"""What ways of choosing clocks come to, side by side on the same costs."""

import msgspec

from underclock.records.choices import Accounting, Arm, Strategy
from underclock.records.common import Clocks, Evidence, Record, check_budget, check_positive
from underclock.records.measured import GpuInfo


class RivalChoice(Record, frozen=True, kw_only=True):
    """What a policy holds, and what that costs.

    Attributes:
        arm: Its cost, with 95 % intervals where it is known how sure costs are.
        keeps_budget: Whether the time budget holds, as a plan has to keep it.
        clocks: What it holds, what is held longest first; empty where nothing was found.
        kernels: The clocks of each kernel; empty where they are not one pair a kernel.
    """

    arm: Arm
    keeps_budget: bool
    clocks: tuple[Clocks, ...] = ()
    kernels: dict[str, Clocks] = msgspec.field(default_factory=dict)


class Rival(Record, frozen=True, kw_only=True):
    """One policy.

    Attributes:
        free: Its choice where changing clocks takes nothing; ``None`` where it has none.
        achievable: Its choice where clocks change as fast as this GPU's; the same where it holds
            one pair, ``None`` where nobody knows how fast, or in which order kernels run.
        power_limit_w: The power limit that it sets, if it sets one.
        note: What to know of it; why, where it has no choice.
    """

    name: Strategy
    free: RivalChoice | None = None
    achievable: RivalChoice | None = None
    power_limit_w: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        check_positive(self, "power_limit_w")
        if self.free is None and not self.note:
            raise ValueError(f"{self.name} has no choice, and nothing says why")

    @property
    def choices(self) -> tuple[RivalChoice, ...]:
        """What it chooses, free switching first; once where both are the same."""
        both = (self.free, None if self.achievable == self.free else self.achievable)
        return tuple(choice for choice in both if choice is not None)


class Comparison(Record, frozen=True, kw_only=True):
    """Policies as rivals.

    Attributes:
        max_slowdown: The time budget, as a fraction above auto.
        latency: What changing clocks takes, in words; ``None`` where that is not known.
        seed: Of what searches at random.
    """

    evidence: Evidence
    gpu: GpuInfo
    workload: str
    accounting: Accounting
    max_slowdown: float
    latency: str | None = None
    seed: int = 0
    rivals: tuple[Rival, ...]
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_budget(self.max_slowdown)

    def rival(self, name: str) -> Rival:
        """Return a policy.

        Raises:
            KeyError: It was not compared.
        """
        return {str(rival.name): rival for rival in self.rivals}[name]
