"""How temperature follows power, and what it costs in clock."""

import math

from underclock.physics.constants import GpuConstants

AMBIENT_C = 28.0
"""Air that cools a GPU, where nobody read it: machine rooms keep their inlets at 18 to 27 °C
(ASHRAE, class A1), and other parts of a machine warm it."""


def temperature_after(gpu: GpuConstants, start_c: float, power_w: float, elapsed_s: float) -> float:
    """Return the temperature in °C after a stretch of constant power: one exponential."""
    steady_c = gpu.ambient_c + gpu.c_per_w * power_w
    return steady_c + (start_c - steady_c) * math.exp(-elapsed_s / gpu.thermal_tau_s)


def boost_mhz(gpu: GpuConstants, temperature_c: float) -> float:
    """Return the core clock in MHz of a GPU left to itself, before any power limit.

    Source: about one 15 MHz bin is lost per 4 °C.
    """
    steps = max(0.0, math.floor((temperature_c - gpu.boost_knee_c) / gpu.boost_step_c))
    return gpu.boost_mhz - gpu.boost_loss_mhz * steps
