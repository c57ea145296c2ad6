"""The whole step at auto, run and timed inside, by every campaign in the same way."""

import dataclasses
from collections.abc import Callable

from underclock.core.steering.wanted import ALONE
from underclock.errors import MeasurementError, NotSupportedError
from underclock.hw.base import Capability, Reading
from underclock.stages.recording import Recorder

_TIMED = 4  # runs of which launches are timed; more tell what the step costs, and hardly more of it


class StepRuns:
    """Runs the whole step at auto, and times its launches inside where that can be done.

    Attributes:
        can_time: Whether launches can be timed; ``False`` from where it was seen that they cannot.
    """

    def __init__(self, recorder: Recorder, tell: Callable[[str], None]) -> None:
        header = recorder.file.header
        self._recorder = recorder
        self._tell = tell
        self._launches = header.launches
        self.can_time = Capability.MIX in recorder.measurer.capabilities
        self._timed = sum(sample.is_step for sample in recorder.file.sample_set().mixed)

    def run(self) -> None:
        """Run it once more.

        Raises:
            DeviceError, MeasurementError: From the GPU.
        """
        self._tell("the whole step at auto clocks")
        self._recorder.append_step(self._measure())

    def _measure(self) -> Reading:
        measurer = self._recorder.measurer
        if self.can_time and self._timed < _TIMED:
            try:
                reading = measurer.measure(self._launches, mix=ALONE, timed=True)
            except (NotSupportedError, MeasurementError) as exc:
                self._give_up(str(exc))
            else:
                if reading.core_mhz is not None:
                    self._timed += 1
                    return reading
                self._give_up("the core clock cannot be read")
                return dataclasses.replace(reading, durations=None)
        # What is wrong with more than the timing is raised here.
        return measurer.measure(self._launches)

    def _give_up(self, why: str) -> None:
        """Go on without; the file says so."""
        self.can_time = False
        self._recorder.file.note(
            (f"{why}: what launches take inside the step is not known, only the step as a whole",)
        )
