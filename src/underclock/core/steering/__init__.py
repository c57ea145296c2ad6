"""Steering, behind this one entry: clocks by co-load, where none may be set.

Under a power cap a kernel in one graph with the heater kernel runs at lower clocks than alone, and
with idling at higher ones. `SteeringAgenda` says which mix to run next, and `steered_rows` turns
windows of mixes into ordinary rows, without what the co-load drew.
"""

from underclock.core.steering.agenda import (
    SteeringAgenda,
    fewest_measurements,
    first_measurements,
)
from underclock.core.steering.mixing import (
    HEATERS,
    IDLING,
    launch_clocks,
    next_thinned,
    spin_mhz,
)
from underclock.core.steering.power_peak import (
    SteeredRows,
    clock_range,
    steered_rows,
    steering_notes,
)
from underclock.core.steering.subtract import HEATER
