"""Work that sets something once and then waits: a fixed clock, or a power limit."""

import math
from collections.abc import Mapping
from typing import Any

from underclock.hw.settable import Setting
from underclock.runtime.undo.armed import Armed


class Hold:
    """Nothing to do between the first setting and the undo."""

    def next_s(self) -> float:
        """Never."""
        return math.inf

    def wake(self, now_s: float) -> None:
        """Nothing is ever due."""


def begin(gpus: Mapping[str, Armed], options: Mapping[str, Any]) -> Hold:
    """Set what the options ask for.

    Args:
        gpus: By UUID.
        options: Values by setting, by UUID.
    """
    for uuid, values in options.items():
        for name, value in values.items():
            gpus[uuid].set(Setting(name), value)
    return Hold()
