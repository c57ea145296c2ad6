"""A kernel's constants from the work it does, where nobody has measured it."""

from dataclasses import dataclass

from underclock.physics.constants import KernelConstants


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What one GPU does per clock cycle, and what that takes."""

    tensor_flop: float
    """FLOPs of matrix products per core cycle, as reached in practice."""
    vector_flop: float
    """Other FLOPs per core cycle."""
    sm_byte: float
    """Bytes the SMs can take in per core cycle."""
    xbar_byte: float
    """Bytes L2 can deliver per crossbar cycle."""
    dram_byte: float
    """DRAM bytes per memory cycle, as reached in practice."""
    launch_s: float
    """Fixed cost of a launch."""
    tensor_j_per_v2: float
    """Switching energy of one FLOP of a matrix product at 1 V."""
    vector_j_per_v2: float
    """Switching energy of another FLOP at 1 V."""
    sm_byte_j_per_v2: float
    """Switching energy of moving a byte through the SMs at 1 V."""
    dram_byte_j: float
    """Energy of a byte of DRAM traffic."""

    def kernel(self, *, flops: float, bytes_moved: float, tensor: bool) -> KernelConstants:
        """Derive a kernel's constants.

        Args:
            flops: Of one launch.
            bytes_moved: DRAM bytes of one launch.
            tensor: Whether the FLOPs are those of matrix products.
        """
        core = flops / (self.tensor_flop if tensor else self.vector_flop)
        core = max(core, bytes_moved / self.sm_byte)
        per_flop_j = self.tensor_j_per_v2 if tensor else self.vector_j_per_v2
        return KernelConstants(
            core_mcycles=core / 1e6,
            dram_mcycles=bytes_moved / self.dram_byte / 1e6,
            xbar_mcycles=bytes_moved / self.xbar_byte / 1e6,
            fixed_s=self.launch_s,
            work_j_per_v2=flops * per_flop_j + bytes_moved * self.sm_byte_j_per_v2,
            dram_j=bytes_moved * self.dram_byte_j,
        )
