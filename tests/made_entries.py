"""Runs of a ledger for tests: of one GPU each."""

from typing import Any

from underclock.ledger import LedgerGpu, LedgerRun, SavedAgainst
from underclock.records import Evidence

HOUR_S = 3600.0
KWH_J = 3.6e6
BEGAN_S = 1_764_547_200.0  # 2025-12-01, 00:00 UTC


def gpu(**fields: Any) -> LedgerGpu:
    """Return a GPU that drew 0.9 kWh where auto would have drawn 1 ± 0.05."""
    made: dict[str, Any] = {
        "gpu": "gpu 0",
        "name": "H200",
        "rank": 0,
        "steps": 100,
        "energy_j": 0.9 * KWH_J,
        "auto_j": KWH_J,
        "auto_interval_j": (0.95 * KWH_J, 1.05 * KWH_J),
    }
    return LedgerGpu(**{**made, **fields})


def untold(**fields: Any) -> LedgerGpu:
    """Return the same of which it cannot be told what it saved."""
    why = "cannot tell, because 2 rounds are too few"
    return gpu(**{"auto_j": None, "auto_interval_j": None, "untold": why, **fields})


def run(*gpus: LedgerGpu, **fields: Any) -> LedgerRun:
    """Return an hour of some GPUs, by default of one."""
    made: dict[str, Any] = {
        "run": "run 1",
        "job": "gpt",
        "plan": "plan 1",
        "began_s": BEGAN_S,
        "lasted_s": HOUR_S,
        "evidence": Evidence.MEASURED,
        "against": SavedAgainst.BLOCKS,
        "gpus": gpus or (gpu(),),
    }
    return LedgerRun(**{**made, **fields})
