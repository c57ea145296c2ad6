"""One GPU's share of a campaign that several GPUs measure at once."""

from collections.abc import Sequence

import msgspec

from underclock.campaign.recording import Recorder, WindowPolicy
from underclock.campaign.survey import Campaign
from underclock.core.design.wanted import Wanted
from underclock.core.step.whole import WHOLE_STEPS
from underclock.hw.base import Capability
from underclock.records import SampleSet, Window


def share_of(samples: SampleSet, campaign: Campaign) -> SampleSet:
    """Return what a share sees of samples: its kernels alone, and no step."""
    at, of = campaign.share
    if of == 1:
        return samples
    kernels = samples.kernels[at::of]
    names = {kernel.name for kernel in kernels}
    return msgspec.structs.replace(
        samples,
        kernels=kernels,
        order=(),
        modules=(),
        lacking={name: each for name, each in samples.lacking.items() if name in names},
        windows=tuple(
            window
            for window in samples.windows
            if window.kernel in names or not (window.kernel or window.mix.launches)
        ),
    )


class SharedRecorder:
    """What the policy of a share's kernels sees of a recorder, whose file holds the step too."""

    def __init__(self, recorder: Recorder, campaign: Campaign) -> None:
        self._recorder, self._campaign = recorder, campaign
        self.measurer = recorder.measurer

    @property
    def can_time(self) -> bool:
        """Whether launches can be timed."""
        return self._recorder.can_time

    @property
    def samples(self) -> SampleSet:
        """Everything on file of the share."""
        return share_of(self._recorder.samples, self._campaign)


class StepsFirst(WindowPolicy):
    """Wants a share's runs of the whole step, then what the policy of its kernels wants."""

    def __init__(self, recorder: Recorder, kernels: WindowPolicy, campaign: Campaign) -> None:
        self._recorder, self._kernels = recorder, kernels
        runs = recorder.samples.order and Capability.RUN in recorder.measurer.capabilities
        self._steps = -(-WHOLE_STEPS // campaign.share[1]) if campaign.in_situ and runs else 0
        self.limit_s = kernels.limit_s
        self.total = kernels.total and kernels.total + self._steps

    def next(self, spent_s: float) -> Sequence[Wanted]:
        """Return what to measure next."""
        missing = self._steps - len(self._recorder.samples.in_situ)
        return [Wanted(timed=False)] * missing or self._kernels.next(spent_s)

    def at_once(self, window: Window) -> Sequence[Wanted]:
        """Return what a window just taken calls for at the clocks held."""
        return self._kernels.at_once(window)
