"""What is published of GPUs: clock tables, limits, peak rates; where a calibration begins.

Sources are the vendor's data sheets and, for clock tables and limits, drivers that were read.
Constants that a sweep can tell are only starting points here; a GPU without a sweep keeps them and
says that it is uncalibrated. Energies per operation are those that put an RTX 3080 Ti's kernels
where arXiv 2601.08539's Table 1 has them, scaled by process for other GPUs.
"""

import dataclasses

from underclock.gpus.models import Calibration, GpuModel
from underclock.physics.constants import GpuConstants, Throughput

_DRIVER = "580.159.03"

_RTX3080TI = GpuModel(
    name="NVIDIA GeForce RTX 3080 Ti",
    driver=_DRIVER,
    core_mhz=tuple(range(210, 2116, 15)),
    mem_mhz=(405, 810, 5001, 9251, 9501),
    low_mem_core_mhz=420,
    p2_mem_mhz=9251,  # GeForce and RTX boards leave P0 once a CUDA context exists
    limit_w=(350.0, 100.0, 385.0),
    calibration=Calibration(source="uncalibrated: set by hand from published figures"),
    constants=GpuConstants(
        exponent=3.4,
        xbar_floor_mhz=1335,
        xbar_lag_mhz=80,
        floor_v=0.725,
        knee_mhz=1300,
        slope_v_per_mhz=1e-4,
        bend_v_per_mhz2=8e-7,
        board_w=10,
        mem_points_mhz=(405, 810, 5001, 9251, 9501),
        mem_points_w=(15, 18, 45, 73, 74),
        mem_points_efficiency=(1.0, 1.0, 1.0, 1.0, 1.0),
        leak_w_per_v3=25,
        leak_per_c=0.0075,
        clock_w_per_ghz_v2=13,
        ambient_c=27,
        c_per_w=0.143,
        thermal_tau_s=30,
        # The sweep's fastest rows run at 1965 MHz at 100 W and at 1920 to 1935 MHz at 340 W.
        boost_mhz=1965,
        boost_knee_c=41,
        boost_loss_mhz=15,
        boost_step_c=12,
    ),
    throughput=Throughput(
        tensor_flop=35_000,  # of 40 960: 80 SMs, 512 a cycle with fp32 accumulation
        vector_flop=16_000,
        sm_byte=1_700,
        xbar_byte=2_400,
        dram_byte=84.5,  # of 96: 384 bits at 19 Gbit/s
        launch_s=2e-6,
        tensor_j_per_v2=3.0e-12,
        vector_j_per_v2=1.5e-11,
        sm_byte_j_per_v2=1.3e-10,
        dram_byte_j=6e-11,
    ),
)

# GA104, 48 SMs, 16 GB at 14 Gbit/s on 256 bits. Its power was fitted elsewhere as
# 29.7 W + 0.037 W/MHz · f · (1 + 7.15e-4 · (f - 1328 MHz)₊)², which gives knee and slope.
_A4000 = GpuModel(
    name="NVIDIA RTX A4000",
    driver=_DRIVER,
    core_mhz=tuple(range(210, 2101, 15)),
    mem_mhz=(405, 810, 5001, 6501, 7001),
    low_mem_core_mhz=420,
    p2_mem_mhz=6501,
    limit_w=(140.0, 100.0, 140.0),
    calibration=Calibration(
        source="uncalibrated: no sweep of this GPU",
        note="knee and slope from a published fit, the rest scaled from the RTX 3080 Ti",
    ),
    constants=dataclasses.replace(
        _RTX3080TI.constants,
        floor_v=0.7,
        knee_mhz=1328,
        slope_v_per_mhz=0.7 * 7.15e-4,
        bend_v_per_mhz2=1e-9,
        board_w=8,
        mem_points_mhz=(405, 810, 5001, 6501, 7001),
        mem_points_w=(3, 4, 11, 14, 15),
        leak_w_per_v3=14,
        clock_w_per_ghz_v2=7.5,
        c_per_w=0.36,
        boost_mhz=1920,
        boost_knee_c=45,
        boost_step_c=8,
    ),
    throughput=Throughput(
        tensor_flop=42_000,  # of 49 152: 48 SMs, 1024 a cycle
        vector_flop=9_600,
        sm_byte=1_020,
        xbar_byte=1_400,
        dram_byte=56.3,  # of 64
        launch_s=2e-6,
        tensor_j_per_v2=1.75e-12,
        vector_j_per_v2=1.5e-11,
        sm_byte_j_per_v2=1.3e-10,
        dram_byte_j=4.5e-11,
    ),
)

# GA102 again, 84 SMs, GDDR6 at 14.5 Gbit/s; one memory clock under load.
_A40 = GpuModel(
    name="NVIDIA A40",
    driver=_DRIVER,
    core_mhz=tuple(range(210, 1741, 15)),
    mem_mhz=(7251,),
    memory_lockable=False,
    limit_w=(300.0, 100.0, 300.0),
    calibration=Calibration(source="uncalibrated: set by hand from published figures"),
    constants=dataclasses.replace(
        _RTX3080TI.constants,
        knee_mhz=1100,
        slope_v_per_mhz=3e-4,
        bend_v_per_mhz2=2e-7,
        board_w=20,
        mem_points_mhz=(7251,),
        mem_points_w=(45,),
        mem_points_efficiency=(1.0,),
        c_per_w=0.15,
        boost_mhz=1740,
        boost_knee_c=80,
    ),
    throughput=Throughput(
        tensor_flop=70_000,  # of 86 016: 84 SMs, 1024 a cycle
        vector_flop=16_800,
        sm_byte=1_790,
        xbar_byte=2_500,
        dram_byte=84.5,  # of 96
        launch_s=2e-6,
        tensor_j_per_v2=1.9e-12,
        vector_j_per_v2=1.5e-11,
        sm_byte_j_per_v2=1.3e-10,
        dram_byte_j=4.5e-11,
    ),
)

# GA100, 108 SMs, HBM2 at 1555 GB/s; memory cannot be locked.
_A100 = GpuModel(
    name="NVIDIA A100-SXM4-40GB",
    driver=_DRIVER,
    core_mhz=tuple(range(210, 1411, 15)),
    mem_mhz=(1215,),
    memory_lockable=False,
    limit_w=(400.0, 100.0, 400.0),
    calibration=Calibration(source="uncalibrated: set by hand from published figures"),
    constants=GpuConstants(
        exponent=3.4,
        xbar_floor_mhz=1000,
        xbar_lag_mhz=80,
        floor_v=0.725,
        # V / V(1005 MHz) of 1.05 at 1110, 1.14 at 1200, 1.27 at 1305, 1.45 at 1387 MHz.
        knee_mhz=1050,
        slope_v_per_mhz=4e-4,
        bend_v_per_mhz2=1.6e-6,
        board_w=25,
        mem_points_mhz=(1215,),
        mem_points_w=(25,),
        mem_points_efficiency=(1.0,),
        leak_w_per_v3=30,
        leak_per_c=0.0075,
        clock_w_per_ghz_v2=20,
        ambient_c=28,
        c_per_w=0.08,
        thermal_tau_s=30,
        boost_mhz=1410,
        boost_knee_c=85,
        boost_loss_mhz=15,
        boost_step_c=4,
    ),
    throughput=Throughput(
        tensor_flop=175_000,  # of 221 184: 108 SMs, 2048 a cycle
        vector_flop=13_800,
        sm_byte=4_000,
        xbar_byte=5_120,
        dram_byte=1_130,  # of 1 280
        launch_s=2e-6,
        tensor_j_per_v2=0.9e-12,
        vector_j_per_v2=1.0e-11,
        sm_byte_j_per_v2=8e-11,
        dram_byte_j=3e-11,
    ),
)

# GM200, 24 SMs, Maxwell: no tensor cores. Clocks as the sweep has them, 38 MHz apart.
_TITANX = GpuModel(
    name="NVIDIA GeForce GTX TITAN X",
    driver=_DRIVER,
    core_mhz=(
        *(595, 633, 671, 709, 747, 785, 823, 861),
        *(899, 937, 975, 1013, 1050, 1088, 1126, 1164),
    ),
    mem_mhz=(810, 3505),
    limit_w=(250.0, 150.0, 275.0),
    calibration=Calibration(source="uncalibrated: set by hand from published figures"),
    constants=dataclasses.replace(
        _RTX3080TI.constants,
        xbar_floor_mhz=595,
        xbar_lag_mhz=0,
        floor_v=0.85,
        knee_mhz=650,
        slope_v_per_mhz=4e-4,
        bend_v_per_mhz2=2e-7,
        board_w=20,
        mem_points_mhz=(810, 3505),
        mem_points_w=(8, 40),
        mem_points_efficiency=(1.0, 1.0),
        c_per_w=0.2,
        boost_mhz=1164,
        boost_knee_c=80,
        boost_loss_mhz=38,
    ),
    throughput=Throughput(
        tensor_flop=4_900,  # of 6 144: 3072 cores, fp32
        vector_flop=4_900,
        sm_byte=1_500,
        xbar_byte=1_500,
        dram_byte=84.5,  # of 96
        launch_s=5e-6,
        tensor_j_per_v2=1.6e-11,
        vector_j_per_v2=1.6e-11,
        sm_byte_j_per_v2=1.3e-10,
        dram_byte_j=1.2e-10,
    ),
)

# GH100, 132 SMs, HBM3e at 4.8 TB/s. Clock tables and limits were read from one; it idles at 124
# to 134 W at 1980 MHz with a context.
_H200 = GpuModel(
    name="NVIDIA H200",
    driver="580.159.04",
    core_mhz=tuple(range(345, 1981, 15)),
    mem_mhz=(2201, 3201),
    memory_lockable=False,
    limit_w=(700.0, 200.0, 700.0),
    calibration=Calibration(source="uncalibrated: no sweep of this GPU"),
    constants=dataclasses.replace(
        _A100.constants,
        xbar_floor_mhz=1200,
        floor_v=0.70,
        knee_mhz=1200,
        slope_v_per_mhz=2.5e-4,
        bend_v_per_mhz2=1.2e-7,
        board_w=35,
        mem_points_mhz=(2201, 3201),
        mem_points_w=(24, 35),
        mem_points_efficiency=(1.0, 1.0),
        leak_w_per_v3=30,
        clock_w_per_ghz_v2=12,
        c_per_w=0.05,
        boost_mhz=1980,
    ),
    throughput=Throughput(
        tensor_flop=440_000,  # of 540 672: 132 SMs, 4096 a cycle
        vector_flop=16_900,
        sm_byte=5_000,
        xbar_byte=6_400,
        dram_byte=1_340,  # of 1 500
        launch_s=2e-6,
        tensor_j_per_v2=0.75e-12,
        vector_j_per_v2=0.8e-11,
        sm_byte_j_per_v2=6e-11,
        dram_byte_j=3.5e-11,
    ),
)

SPECS = {
    "rtx3080ti": _RTX3080TI,
    "a4000": _A4000,
    "a40": _A40,
    "a100": _A100,
    "titanx": _TITANX,
    "h200": _H200,
}
