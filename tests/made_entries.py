"""Ledger entries for tests: one GPU of one run each."""

from typing import Any

import msgspec

from underclock.ledger.entries import LedgerEntry, SavedAgainst
from underclock.records import Evidence

HOUR_S = 3600.0
KWH_J = 3.6e6
BEGAN_S = 1_764_547_200.0  # 2025-12-01, 00:00 UTC


def entry(**fields: Any) -> LedgerEntry:
    """Return an hour of one GPU that drew 0.9 kWh where auto would have drawn 1 ± 0.05."""
    made = LedgerEntry(
        run="run 1",
        job="gpt",
        workload="gpt3-xl",
        gpu="gpu 0",
        gpu_name="H200",
        rank=0,
        began_s=BEGAN_S,
        lasted_s=HOUR_S,
        steps=100,
        held_steps=100,
        energy_j=0.9 * KWH_J,
        held_j=0.9 * KWH_J,
        auto_j=KWH_J,
        auto_interval_j=(0.95 * KWH_J, 1.05 * KWH_J),
        against=SavedAgainst.BLOCKS,
        evidence=Evidence.MEASURED,
        plan="plan 1",
    )
    return msgspec.structs.replace(made, **fields)


def untold(**fields: Any) -> LedgerEntry:
    """Return the same of which nobody can tell what it saved."""
    why = "cannot tell, because 2 rounds are too few"
    return entry(**{"auto_j": None, "auto_interval_j": None, "untold": why} | fields)
