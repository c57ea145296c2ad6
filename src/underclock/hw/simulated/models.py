"""The GPUs that can be simulated: clock tables, constants, and how kernels map onto them.

The constants of a model marked uncalibrated were set by hand from published figures; they are
right in kind, not in detail.
"""

from dataclasses import dataclass

from underclock.errors import UsageError
from underclock.physics.constants import GpuConstants, KernelConstants
from underclock.records import Kernel, Kind
from underclock.units import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What one GPU does per clock cycle and what that takes, for kernels known by their work.

    Attributes:
        tensor_flop: FLOPs of matrix products per core cycle, as reached in practice.
        vector_flop: Other FLOPs per core cycle.
        sm_byte: Bytes the SMs can take in per core cycle.
        xbar_byte: Bytes L2 can deliver per crossbar cycle.
        dram_byte: DRAM bytes per memory cycle, as reached in practice.
        launch_s: Fixed cost of a launch.
        tensor_j_per_v2: Switching energy of one such FLOP at 1 V.
        vector_j_per_v2: Likewise.
        sm_byte_j_per_v2: Switching energy of moving a byte through the SMs at 1 V.
        dram_byte_j: Energy of a byte of DRAM traffic.
    """

    tensor_flop: float
    vector_flop: float
    sm_byte: float
    xbar_byte: float
    dram_byte: float
    launch_s: float
    tensor_j_per_v2: float
    vector_j_per_v2: float
    sm_byte_j_per_v2: float
    dram_byte_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """One simulated GPU model.

    Attributes:
        name: As the driver gives it.
        driver: Driver version the simulation answers with.
        core_mhz: Clocks of the table, ascending.
        mem_mhz: Likewise.
        low_mem_core_mhz: Greatest core clock at the least memory clock; above it the memory runs
            at its second clock instead. ``None`` where they are independent.
        memory_lockable: Whether the driver takes memory locks.
        limit_w: Default power limit; least and greatest that may be set.
        calibration: Where the constants come from.
        constants: Shared physics.
        throughput: Kernel physics.
    """

    name: str
    driver: str
    core_mhz: tuple[int, ...]
    mem_mhz: tuple[int, ...]
    low_mem_core_mhz: int | None
    memory_lockable: bool
    limit_w: tuple[float, float, float]
    calibration: str
    constants: GpuConstants
    throughput: Throughput

    def kernel(self, kernel: Kernel) -> KernelConstants:
        """Derive a kernel's constants from its FLOPs and bytes.

        Raises:
            UsageError: The kernel does not say what it does.
        """
        if kernel.flops is None or kernel.bytes_moved is None:
            raise UsageError(
                f"cannot simulate {kernel.name!r}: its FLOPs and bytes are unknown",
                hint="simulate a step made by `underclock trace gpt3-xl`",
            )
        t = self.throughput
        tensor = kernel.kind is Kind.GEMM
        core = kernel.flops / (t.tensor_flop if tensor else t.vector_flop)
        core = max(core, kernel.bytes_moved / t.sm_byte)
        per_flop_j = t.tensor_j_per_v2 if tensor else t.vector_j_per_v2
        return KernelConstants(
            core_mcycles=core / 1e6,
            dram_mcycles=kernel.bytes_moved / t.dram_byte / 1e6,
            xbar_mcycles=kernel.bytes_moved / t.xbar_byte / 1e6,
            fixed_s=t.launch_s,
            work_j_per_v2=kernel.flops * per_flop_j + kernel.bytes_moved * t.sm_byte_j_per_v2,
            dram_j=kernel.bytes_moved * t.dram_byte_j,
        )


# GA102, 80 SMs. Voltage follows the RTX 3070 Ti's measured shape, with the knee where an RTX
# 3080 Ti's GEMMs stop saving; memory and board power come from differences within a published
# sweep at equal core clocks; the rest is set so that GEMMs sit at the 350 W limit near 1850 MHz.
_RTX3080TI = GpuModel(
    name="NVIDIA GeForce RTX 3080 Ti",
    driver="580.159.03",
    core_mhz=tuple(range(210, 2116, 15)),
    mem_mhz=(405, 810, 5001, 9251, 9501),
    low_mem_core_mhz=420,
    memory_lockable=True,
    limit_w=(350.0, 100.0, 385.0),
    calibration="uncalibrated: constants set by hand from published figures",
    constants=GpuConstants(
        exponent=3.4,
        xbar_floor_mhz=1335,
        xbar_lag_mhz=80,
        floor_v=0.725,
        knee_mhz=1550,
        slope_v_per_mhz=2e-4,
        bend_v_per_mhz2=2e-6,
        board_w=25,
        mem_points_mhz=(405, 810, 5001, 9251, 9501),
        mem_points_w=(2.8, 5.6, 34.5, 63.8, 65.6),
        mem_points_efficiency=(1.0, 1.0, 1.0, 1.0, 1.0),
        leak_w_per_v3=25,
        leak_per_c=0.0075,
        clock_w_per_ghz_v2=13,
        ambient_c=27,
        c_per_w=0.143,
        thermal_tau_s=30,
        boost_mhz=2025,
        boost_knee_c=45,
        boost_loss_mhz=15,
        boost_step_c=4,
    ),
    throughput=Throughput(
        tensor_flop=35_000,
        vector_flop=16_000,
        sm_byte=1_700,
        xbar_byte=2_400,
        dram_byte=84.5,
        launch_s=2e-6,
        tensor_j_per_v2=3.3e-12,
        vector_j_per_v2=1.5e-11,
        sm_byte_j_per_v2=1.3e-10,
        dram_byte_j=6e-11,
    ),
)

MODELS = {"rtx3080ti": _RTX3080TI}


def gpu_model(name: str) -> GpuModel:
    """Return a model by its short name.

    Raises:
        UsageError: No such model; another GPU's constants would be worse than none.
    """
    if name not in MODELS:
        raise UsageError(f"no simulated GPU is called {name!r}", hint=nearest(name, MODELS))
    return MODELS[name]
