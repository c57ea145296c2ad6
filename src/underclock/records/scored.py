"""What a plan costs on a table that it was not made on."""

from underclock.records.choices import Arm, Strategy
from underclock.records.common import Evidence, Record, check_change, check_positive, check_same
from underclock.records.measured import GpuInfo
from underclock.records.schemas import SCHEMAS


class Score(Record, frozen=True, kw_only=True, tag_field="kind", tag="score"):
    """What a plan really costs on a full table, in a plan's own terms.

    Attributes:
        plan: The strategy whose clocks the plan holds.
        time_s: Per step, under the plan's clocks.
        energy_j: Per step, under the plan's clocks.
        time_change: Fraction of the table's auto cost.
        energy_change: Fraction of the table's auto cost.
        promised_time_change: What the plan said.
        promised_energy_change: What the plan said.
        arms: The table's ``auto`` and the plan's chosen arm, costed on the table.
    """

    schema: int = SCHEMAS["score"]
    evidence: Evidence
    gpu: GpuInfo
    plan: Strategy
    time_s: float
    energy_j: float
    time_change: float
    energy_change: float
    promised_time_change: float
    promised_energy_change: float
    arms: tuple[Arm, ...]
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject costs that cannot be, or that are not those of its arms."""
        check_positive(self, "time_s", "energy_j")
        names = ("time_change", "energy_change")
        check_change(self, *names, *(f"promised_{name}" for name in names))
        costs = {arm.name: arm.cost for arm in self.arms}
        auto, mine = costs.get(Strategy.AUTO), costs.get(self.plan)
        # Of a plan that says it is of auto, both arms have that name.
        if mine is not None and len(costs) == len(self.arms):
            for name in ("time_s", "energy_j", *names):
                check_same(name, getattr(self, name), getattr(mine, name))
            if auto is not None:
                mine.check_against(auto)
