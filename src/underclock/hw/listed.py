"""Which clock pairs can be held on a GPU, by what its driver lists."""

from underclock.hw.base import Gpu
from underclock.records import AUTO, Clocks


def listed_clocks(gpu: Gpu) -> list[Clocks]:
    """Return every clock pair that holds on a GPU, slowest memory first, auto last."""
    every_core = gpu.supported_core_mhz()
    pairs = []
    mems = gpu.supported_mem_mhz()
    # Where there is one memory clock, holding it is what auto does, and often refused.
    for mem in mems if len(mems) > 1 else ():
        cores = gpu.supported_core_mhz(mem)
        pairs += [Clocks(core_mhz=core, mem_mhz=mem) for core in cores]
        # A memory clock that bounds the core does not hold when the core is left to boost.
        if cores and cores[-1] == every_core[-1]:
            pairs.append(Clocks(mem_mhz=mem))
    return [*pairs, *(Clocks(core_mhz=core) for core in every_core), AUTO]
