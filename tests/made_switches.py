"""Changes of clocks for tests: their latencies, and problems of sequences."""

from typing import Any

import numpy as np

from underclock.core.solvers import SequenceProblem
from underclock.records.latencies import Switch
from underclock.units import Domain


def switch(
    domain: Domain,
    delay_s: float = 0.0,
    *,
    mhz: tuple[int | None, int | None] = (None, None),
    call_s: float = 0.0,
    jitter_s: float = 0.0,
    stall_s: float = 0.0,
) -> Switch:
    """Return a change from one clock to another, whose delay scatters by a tenth."""
    return Switch(
        domain=domain,
        from_mhz=mhz[0],
        to_mhz=mhz[1],
        call_s=call_s,
        delay_s=delay_s,
        delay_p05_s=0.9 * delay_s,
        delay_p95_s=1.1 * delay_s,
        jitter_s=jitter_s,
        stall_s=stall_s,
        repeats=3,
    )


def sequence(**fields: Any) -> SequenceProblem:
    """Make a problem in which, unless given, no change is late, needs room or is blocked."""
    none = np.zeros((fields["time_s"].shape[1],) * 2)
    usual: dict[str, Any] = {"dwell_s": none, "jitter_s": none}
    usual |= {"miss_time_s": none, "miss_energy_j": none}
    return SequenceProblem(**({"blocked": np.zeros(len(fields["order"]), bool)} | usual | fields))
