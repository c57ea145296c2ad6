"""How promises made on one half of a table's repeats came out on the other."""

from underclock.records.common import Clocks, Evidence, Record
from underclock.records.measured import GpuInfo


class CheckedNumber(Record, frozen=True, kw_only=True):
    """A number over all splits, with its 95 % interval.

    The interval is of more splits of the same table, not of other tables.
    """

    value: float
    low: float | None
    high: float | None


class CheckedPromise(Record, frozen=True, kw_only=True):
    """Plans for one time budget.

    Attributes:
        max_slowdown: The budget.
        promised_energy: Mean promise, as a change against auto.
        executed_energy: Mean change on the other half.
        energy_bias: Promise less execution; below zero too much was promised.
        time_bias: The same for time.
        energy_coverage: Share of splits in which the promise's 95 % interval holds what came, the
            noise of the other half granted.
        time_coverage: The same for time.
        over_budget: Share of splits that took longer than the budget.
        beyond_noise: Share that took longer by more than the noise of the other half explains.
    """

    max_slowdown: float
    promised_energy: CheckedNumber
    executed_energy: CheckedNumber
    energy_bias: CheckedNumber
    time_bias: CheckedNumber
    energy_coverage: CheckedNumber
    time_coverage: CheckedNumber
    over_budget: CheckedNumber
    beyond_noise: CheckedNumber


class PromiseCheck(Record, frozen=True, kw_only=True):
    """A table's check.

    Attributes:
        evidence: How its samples were obtained.
        gpu: The GPU they belong to.
        workload: Name of the table.
        baseline: The clocks called auto.
        splits: How often repeats were split.
        seed: Of the splits.
        kernels: How many could be split.
        rows: How many rows they have with repeats.
        runs: How many runs these have.
        promises: For each budget.
        warnings: Sentences the reader must see beside the numbers.
    """

    evidence: Evidence
    gpu: GpuInfo
    workload: str
    baseline: Clocks
    splits: int
    seed: int
    kernels: int
    rows: int
    runs: int
    promises: tuple[CheckedPromise, ...]
    warnings: tuple[str, ...] = ()
