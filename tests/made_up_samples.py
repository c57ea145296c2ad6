"""Samples of kernels that all cost the same, made up by hand."""

from collections.abc import Iterable
from typing import Any

from underclock.records import Clocks, Evidence, GpuInfo, Kernel, Kind, SampleSet, Step, Window
from windows import gathered

CORES = (600, 900, 1200, 1500, 1800)
MEMS = (5001, 9251)


def made_sample(kernel: str, core: int | None, mem: int | None = 9251, **more: object) -> Window:
    fields: dict[str, object] = {"time_s": 1.0, "energy_j": 100.0, "repeat": 0, **more}
    return Window(kernel=kernel, asked=Clocks(core_mhz=core, mem_mhz=mem), **fields)  # type: ignore[arg-type]


def made_set(
    samples: list[Window],
    in_situ: Iterable[Window] = (),
    mixed: Iterable[Window] = (),
    **more: Any,
) -> SampleSet:
    names = dict.fromkeys(sample.kernel for sample in samples)
    fields: dict[str, Any] = {
        "gpu": GpuInfo(name="G", power_limit_w=200.0),
        **more,
    }
    kernels = fields.pop("kernels", None) or tuple(
        Kernel(name=name, kind=Kind.GEMM) for name in names
    )
    return SampleSet(
        evidence=Evidence.MEASURED,
        step=Step(name="w", kernels=kernels),
        windows=gathered(samples, in_situ=in_situ, mixed=mixed),
        **fields,
    )


def made_grid(kernel: str, **more: object) -> list[Window]:
    return [made_sample(kernel, core, mem, **more) for mem in MEMS for core in CORES]
