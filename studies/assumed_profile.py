"""A profile by hand for a pipeline that was traced: its times at auto, all else assumed.

    python studies/assumed_profile.py JOB > PROFILE

Nothing may be locked where such a pipeline is tried, so no plan of it promises anything: it is
held dry, to see whether every rank is followed.
"""

import csv
import sys
from pathlib import Path

import msgspec

from underclock.records.job import Job

FASTEST_MHZ, SLOWEST_MHZ, STEP_MHZ = 1980, 1200, 60
CLOCKED, WAITING_W, MOST_W, STEEP = 0.75, 200.0, 500.0, 2.4  # assumed, of any instruction


def main() -> None:
    """Write the profile."""
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Job)
    to = csv.writer(sys.stdout)
    to.writerow(("stage", "instruction", "frequency", "time", "energy"))
    for name, profile in sorted(job.profiles.items()):
        _, stage, kind = name.split()
        auto_s = profile.rows[profile.auto].time_s
        for mhz in range(FASTEST_MHZ, SLOWEST_MHZ - 1, -STEP_MHZ):
            share = mhz / FASTEST_MHZ
            time_s = auto_s * (1.0 - CLOCKED + CLOCKED / share)
            power_w = WAITING_W + MOST_W * share**STEEP
            to.writerow((stage, kind, mhz, f"{time_s:.6g}", f"{time_s * power_w:.6g}"))


if __name__ == "__main__":
    main()
