"""Tables of runs that scatter around a known truth."""

import numpy as np

from underclock.records import Clocks, Evidence, GpuInfo, Kernel, SampleSet, Step, Window

CORES = tuple(range(600, 2000, 100))


def true_costs(core_mhz: float) -> tuple[float, float]:
    time_s = (1.0 + (1000.0 / core_mhz) ** 3) ** (1 / 3)
    return time_s, time_s * (60.0 + 80.0 * (core_mhz / 1500.0) ** 2.5)


def noisy_samples(kernel: str, noise: float, seed: int, repeats: int = 3) -> list[Window]:
    random = np.random.default_rng(seed)
    samples = []
    for core in (None, *CORES):
        time_s, energy_j = true_costs(core or 1950)
        for repeat in range(repeats):
            off = np.exp(noise * random.standard_normal(2))
            samples.append(
                Window(
                    kernel=kernel,
                    asked=Clocks(core_mhz=core),
                    repeat=repeat,
                    time_s=time_s * float(off[0]),
                    energy_j=energy_j * float(off[1]),
                )
            )
    return samples


def run_table(samples: list[Window], **more: object) -> SampleSet:
    names = dict.fromkeys(sample.kernel for sample in samples)
    return SampleSet(
        evidence=Evidence.REPLAYED,
        gpu=GpuInfo(name="G"),
        step=Step(name="t", kernels=tuple(Kernel(name=name, count=2) for name in names)),
        windows=tuple(samples),
        **more,  # type: ignore[arg-type]
    )
