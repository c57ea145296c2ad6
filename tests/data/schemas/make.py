"""Write one file of every kind as this version writes it, beside those of earlier schemas.

Run it once after raising a number in ``underclock.records.common``, with ``PYTHONPATH=tests``; a
file that exists stays.
"""

import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from judged_tables import judged
from underclock.app.measuring import measure
from underclock.app.planning import plan
from underclock.app.stages import pipeline_job, plan_job
from underclock.core.planning.best_choice import Goal
from underclock.records import (
    AUTO,
    Clocks,
    Evidence,
    GpuInfo,
    Kernel,
    Pass,
    Provenance,
    Record,
    Step,
)
from underclock.records.common import SCHEMAS
from underclock.records.latencies import (
    ClockReading,
    DriverMoves,
    LatencyTable,
    Quantiles,
    Reader,
)
from underclock.records.serving import Basis, ServingBucket, ServingCost, ServingPlan
from underclock.store import merge, save, write_document

_TABLE = """gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w,count
G,a,,,1.0,100,100,2
G,a,900,,1.05,80,,2
G,b,,,2.0,300,150,1
G,b,900,,2.0,250,,1
"""
_PROFILE = """stage,instruction,frequency,time,energy
0,forward,1400,0.1,30
0,forward,1000,0.13,24
0,backward,1400,0.2,60
"""


def _serving(gpu: GpuInfo) -> ServingPlan:
    auto, held = (
        ServingCost(
            clocks=clocks,
            time_s=time_s,
            time_interval_s=(time_s, time_s),
            energy_j=energy_j,
            energy_interval_j=(energy_j, energy_j),
            basis=Basis.MEASURED,
        )
        for clocks, time_s, energy_j in ((AUTO, 0.01, 2.0), (Clocks(core_mhz=900), 0.0101, 1.5))
    )
    bucket = ServingBucket(
        pass_=Pass.DECODE,
        batch=8,
        context=1024,
        tokens=8,
        auto=auto,
        chosen=held,
        fixed=held,
        frontier=(auto, held),
    )
    return ServingPlan(
        evidence=Evidence.SIMULATED,
        gpu=gpu,
        workload="a family",
        max_slowdown=0.01,
        fixed=held.clocks,
        buckets=(bucket,),
    )


def main(folder: Path) -> None:
    """Write what is missing."""
    with tempfile.TemporaryDirectory() as aside:
        table, samples = Path(aside) / "table.csv", Path(aside) / "samples.db"
        table.write_text(_TABLE)
        sample_set = measure(gpu=f"replay:{table}", to=samples)
        made = plan(sample_set, Goal(max_slowdown=0.1))
        assumed = LatencyTable.constant(0.006)
        took = Quantiles(median_s=0.001, p95_s=0.002, p99_s=0.002, n=3)
        profile = Path(aside) / "profile.csv"
        profile.write_text(_PROFILE)
        job = pipeline_job("1f1b", profile, stages=1, microbatches=2, blocked_w=50.0)
        documents: dict[str, Record] = {
            "step": Step(
                name="a step",
                kernels=(Kernel(name="a", count=2), Kernel(name="b")),
                order=(0, 1, 0),
            ),
            "plan": made,
            "validation": judged(made, table, repeats=1),
            "latencies": LatencyTable(
                evidence=Evidence.SIMULATED, gpu=sample_set.gpu, switches=assumed.switches
            ),
            "driver moves": DriverMoves(
                evidence=Evidence.SIMULATED,
                gpu=sample_set.gpu,
                provenance=Provenance(),
                up=(),
                down=(ClockReading(by=Reader.NVML, every_s=5e-4, transition=took),),
                warnings=("switching cannot be seen",),
            ),
            "job": job,
            "job plan": plan_job(job),
            "serving plan": _serving(sample_set.gpu),
        }
        for kind, record in documents.items():
            path = folder / f"{kind}.{SCHEMAS[kind]}.json"
            if not path.exists():
                write_document(path, record)
        to = folder / f"samples.{SCHEMAS['samples']}.db"
        if not to.exists():
            to.write_bytes(samples.read_bytes())
        to = folder / f"merged samples.{SCHEMAS['merged samples']}.db"
        if not to.exists():
            gpu = replace(sample_set.gpu, uuid="GPU-0")
            board = Path(aside) / "board.db"
            own = replace(sample_set, evidence=Evidence.SIMULATED, gpu=gpu, provenance=Provenance())
            save(own, board)
            merge([board], to)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
