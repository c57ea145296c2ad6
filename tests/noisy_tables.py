"""Tables of runs that scatter around a known truth."""

import numpy as np

from underclock.records import Clocks, Evidence, GpuInfo, Kernel, SampleSet, Window

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
        workload="t",
        kernels=tuple(Kernel(name=name, count=2) for name in names),
        windows=tuple(samples),
        **more,  # type: ignore[arg-type]
    )


def stepped_samples(kernels: int, cores: tuple[int, ...], repeats: int) -> list[Window]:
    """Return samples of which rows are off by 3 % of their own, and their runs by 0.1 %."""
    random = np.random.default_rng(3)
    samples = []
    for k in range(kernels):
        for core in (None, *cores):
            time_s, energy_j = true_costs(core or 1950)
            row = np.exp(0.03 * random.standard_normal(2)) if core else np.ones(2)
            for repeat in range(repeats):
                off = row * np.exp(0.001 * random.standard_normal(2))
                samples.append(
                    Window(
                        kernel=f"k{k}",
                        asked=Clocks(core_mhz=core),
                        repeat=repeat,
                        time_s=(k + 1) * time_s * float(off[0]),
                        energy_j=(k + 1) * energy_j * float(off[1] * off[0]),
                    )
                )
    return samples
