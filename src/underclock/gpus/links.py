"""What GPUs send to one another over, and how long that takes: assumed, but for two H200s.

A collective is a ring, as NCCL counts it (``src/graph/tuning.cc``, protocol Simple): 8.4 µs to
begin, 3.4 µs a send over NVLink or 5.7 µs over PCIe, and its bytes at a part of the link's
bandwidth. Two H200s reached 0.50 to 0.66 of theirs (docs/evidence/h200/parallel.md): gathers,
scatters and reductions all get the mean, on every link. Bandwidths are of one direction, from
NVIDIA's data sheets and the PCIe specification (16 lanes). GPUs without peer-to-peer, such as
GeForce cards, go through host memory and are slower than this.
"""

import dataclasses
import re
from dataclasses import dataclass

from underclock.physics.constants import GpuConstants, KernelConstants, Throughput
from underclock.physics.costs import duration_s, voltage_v
from underclock.records import Kernel

_BEGINS_S, _NVLINK_SEND_S, _PCIE_SEND_S = 8.4e-6, 3.4e-6, 5.7e-6
_REACHED = 0.58
# Of two H200 (700 W) at 1980 MHz: 148 W waiting in a collective where idling draws 124 W, and 288
# to 327 W in large ones: what waiting and copying do not explain is the link's. Of every GPU.
_WAITING, _SENT_BYTE_J, _SHOWN = 24 / 700, 0.4e-9, 1 / 4


@dataclass(frozen=True, slots=True)
class Link:
    """A GPU's way to the others.

    Attributes:
        name: As people call it.
        gb_per_s: Bandwidth of one direction in GB/s.
        is_known: Whether this GPU's link is known; else it is the usual one.
    """

    name: str
    gb_per_s: float
    is_known: bool = True

    def taken_s(self, kernel: Kernel) -> float:
        """Return how long a collective takes; one that does not say of how many GPUs, of two."""
        of = re.search(r"^(\d+)x\[| among (\d+) ranks", kernel.shape)
        sends = (int(of[1] or of[2]) if of else 2) - 1
        if re.search("all.?reduce", kernel.name):
            sends *= 2
        send_s = _NVLINK_SEND_S if self.name.startswith("NVLink") else _PCIE_SEND_S
        moving_s = (kernel.bytes_moved or 0.0) / (_REACHED * self.gb_per_s * 1e9)
        return _BEGINS_S + sends * send_s + moving_s

    def constants(
        self,
        kernel: Kernel,
        gpu: GpuConstants,
        throughput: Throughput | None,
        *,
        highest_mhz: tuple[int, int],
        limit_w: float,
    ) -> KernelConstants:
        """Return what is assumed of a collective: at the highest clocks, its link's time.

        What it sends it reads from memory, and as much comes in. Most of that hides behind the
        link; the rest goes with the clocks.

        Args:
            throughput: ``None`` where it is not known: then nothing goes with the clocks.
            highest_mhz: Core and memory.
            limit_w: By default, of the GPU.
        """
        core_mhz, mem_mhz = map(float, highest_mhz)
        taken_s, sent = self.taken_s(kernel), kernel.bytes_moved or 0.0
        copying, shown_s = KernelConstants(fixed_s=taken_s), 0.0
        if throughput is not None:
            copying = throughput.kernel(flops=0.0, bytes_moved=2.0 * sent, tensor=False)
            copying = dataclasses.replace(
                copying,
                core_mcycles=_SHOWN * copying.core_mcycles,
                dram_mcycles=_SHOWN * copying.dram_mcycles,
                xbar_mcycles=0.0,
                fixed_s=0.0,
                serial=True,
            )
            shown_s = float(duration_s(gpu, copying, core_mhz, mem_mhz))
        waiting_j = _WAITING * limit_w * taken_s
        return dataclasses.replace(
            copying,
            fixed_s=max(taken_s - shown_s, 0.0),
            work_j_per_v2=copying.work_j_per_v2 + waiting_j / voltage_v(gpu, core_mhz) ** 2,
            dram_j=copying.dram_j + _SENT_BYTE_J * sent,
        )

    def __str__(self) -> str:
        unknown = "" if self.is_known else ", as nothing is known of this GPU's link"
        return (
            "times and powers of collectives are assumed, not measured: a ring over "
            f"{self.name} at {_REACHED * self.gb_per_s:.3g} GB/s{unknown}"
        )


_LINKS = {  # words of a GPU's name; the first that fits
    r"PCIe.*(H100|H200)|(H100|H200).*(PCIe|NVL)|RTX 50\d\d|RTX PRO": Link("PCIe 5.0", 63.0),
    r"A100.*PCIe|A[346]0\b|A\d000\b|RTX [34]0\d\d|\bL40?S?\b": Link("PCIe 4.0", 31.5),
    r"V100.*PCIe|TITAN|RTX 20\d\d|GTX 10\d\d|\bT4\b": Link("PCIe 3.0", 15.8),
    r"\bG?B[123]00": Link("NVLink 5", 900.0),
    r"\b(G?H[128]00|H20)": Link("NVLink 4", 450.0),
    r"\bA[18]00": Link("NVLink 3", 300.0),
    r"\bV100": Link("NVLink 2", 150.0),
}


def link_of(model: str) -> Link:
    """Return the link of a GPU model, by its name; the usual one where it is not known."""
    return next(
        (link for words, link in _LINKS.items() if re.search(words, model, re.IGNORECASE)),
        Link("PCIe 4.0", 31.5, is_known=False),
    )
