"""Plans of steps with any number of kernels. Their numbers are invented, for tests only."""

import random

import msgspec

from invented import LATENCY_PLAN, cost
from underclock.records import Choice, ClockSchedule, Kernel, LatencyPoint, Pass, Plan, Segment
from underclock.records.latencies import LatencyTable

_FUNCTIONS = (
    "ampere_bf16_s16816gemm_bf16_{}x{}_ldg8_f2f_stages_64x{}_nt",
    "void at::native::vectorized_elementwise_kernel<{}, at::native::MulFunctor<float>, {}>_{}",
    "triton_red_fused_native_layer_norm_backward_{}_{}_{}",
)
_PASSES = (Pass.FORWARD, Pass.BACKWARD, Pass.OPTIMIZER)
_CLOCKS = (1410, 1500, 1605, 1740, None)


def wide_plan(kernels: int, *, layers: int = 24, seed: int = 0) -> Plan:
    """Return a plan in which every kernel has times, powers and clocks of its own.

    Args:
        kernels: Each is launched once, a third of them in each pass.
        layers: Of the model, in each pass.
    """
    draw = random.Random(seed)  # noqa: S311 - for tests
    names = [
        f"{draw.choice(_FUNCTIONS).format(*draw.choices(range(16, 512), k=3))} {at}"
        for at in range(kernels)
    ]
    part = -(-kernels // 3)
    runs = tuple(
        Kernel(name=name, pass_=_PASSES[at // part], bytes_moved=1e6)
        for at, name in enumerate(names)
    )
    modules = []
    for at in range(kernels):
        layer = at % part * layers // part
        modules.append(f"Gpt > blocks.{layer} > .attention")
    choices = {
        name: Choice(
            core_mhz=draw.choice(_CLOCKS),
            mem_mhz=None,
            time_change=draw.uniform(0.0, 0.02),
            energy_change=draw.uniform(-0.2, 0.0),
            auto_time_s=12.31 / kernels * draw.uniform(0.1, 1.9),
            auto_energy_j=4212.0 / kernels * draw.uniform(0.1, 1.9),
            auto_core_mhz=1695,
        )
        for name in names
    }
    length = max(1, kernels // 300)
    lengths = [length] * (kernels // length) + [kernels % length] * (kernels % length > 0)
    segments = [
        Segment(launches=each, core_mhz=_CLOCKS[at % 5], mem_mhz=(None, 5001)[at % 7 == 6])
        for at, each in enumerate(lengths)
    ]
    schedule = ClockSchedule(
        segments=tuple(segments),
        switches=sum(
            a.clocks != b.clocks for a, b in zip(segments, segments[1:] + segments[:1], strict=True)
        ),
        latency="20ms, assumed",
        latencies=LatencyTable.constant(0.02),
        launch_s=tuple(choices[name].auto_time_s * draw.uniform(1.0, 1.02) for name in names),
        launch_j=tuple(choices[name].auto_energy_j * draw.uniform(0.8, 1.0) for name in names),
    )
    own = (cost(-0.001, -0.0512), cost(0.01, -0.07), cost(0.05, -0.1))
    faster = (cost(-0.001, -0.08), cost(0.01, -0.11), cost(0.05, -0.15))
    point = LatencyPoint(
        latency_s=0.006,
        time_change=0.01,
        energy_change=-0.11,
        switches=12,
        gap=0.0,
        hardware="Hopper (as cited by arXiv 2601.08539)",
        frontier=faster,
    )
    return msgspec.structs.replace(
        LATENCY_PLAN,
        kernels=choices,
        runs=runs,
        order=tuple(range(kernels)),
        modules=tuple(modules),
        schedule=schedule,
        achievable_frontier=own,
        latency_curve=(point, LATENCY_PLAN.latency_curve[1]),
    )
