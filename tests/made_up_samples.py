"""Samples of kernels that all cost the same, made up by hand."""

from underclock.records import Clocks, Evidence, GpuInfo, Kernel, Kind, Sample, SampleSet

CORES = (600, 900, 1200, 1500, 1800)
MEMS = (5001, 9251)


def made_sample(kernel: str, core: int | None, mem: int | None = 9251, **more: object) -> Sample:
    fields: dict[str, object] = {"time_s": 1.0, "energy_j": 100.0, "repeat": 0, **more}
    return Sample(kernel=kernel, asked=Clocks(core_mhz=core, mem_mhz=mem), **fields)  # type: ignore[arg-type]


def made_set(samples: list[Sample], **more: object) -> SampleSet:
    names = dict.fromkeys(sample.kernel for sample in samples)
    fields: dict[str, object] = {
        "gpu": GpuInfo(name="G", power_limit_w=200.0),
        "kernels": tuple(Kernel(name=name, kind=Kind.GEMM) for name in names),
        **more,
    }
    return SampleSet(
        evidence=Evidence.MEASURED,
        workload="w",
        samples=tuple(samples),
        **fields,  # type: ignore[arg-type]
    )


def made_grid(kernel: str, **more: object) -> list[Sample]:
    return [made_sample(kernel, core, mem, **more) for mem in MEMS for core in CORES]
