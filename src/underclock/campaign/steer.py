"""A steering campaign: kernels at many clocks, though nobody may set one."""

from functools import partial

import msgspec

from underclock.campaign.recording import Recorder, WindowPolicy, window_of
from underclock.campaign.survey import Campaign
from underclock.core.design.agenda import SteeringAgenda
from underclock.core.design.wanted import COMPANIONS, IDLING, Wanted
from underclock.core.model.parameters import unknown_gpu
from underclock.core.model.sample_sets import UNKNOWN_MHZ
from underclock.errors import NoRoomError
from underclock.records import Mix


class Steering(WindowPolicy):
    """Wants one mix after the other, until the step's energy is as sure as asked."""

    why = "nothing more would tell much"

    def __init__(self, recorder: Recorder, campaign: Campaign) -> None:
        self.limit_s = campaign.limit_s(steers=True)
        self._recorder = recorder
        self._precision = campaign.precision
        # As one kernel the step is in each of its mixes, and in no other step.
        self._whole = campaign.in_situ and not recorder.whole
        header = recorder.file.header
        self._shape = unknown_gpu(
            [UNKNOWN_MHZ],
            fastest_mhz=float(max(c.core_mhz for c in header.settings if c.core_mhz is not None)),
            most_w=header.gpu.power_limit_w or 1.0,
        )
        self._companion = True

    def begin(self) -> None:
        """Try what a campaign rests on before it spends time, and whether the companion can run."""
        try:
            self._try(COMPANIONS)
        except NoRoomError as exc:
            self._recorder.file.note(
                (f"{exc}: kernels ran with idling only, so no clock below their own was seen",)
            )
            self._companion = False
            self._try(IDLING)

    def _try(self, mix: Mix) -> None:
        reading = self._recorder.measurer.measure((), mix=mix, timed=True)
        window_of(Wanted("", mix), 0, reading, self._recorder.file.header)

    def next(self, spent_s: float) -> list[Wanted]:
        """Return the mix that tells most, by what is on file."""
        del spent_s
        samples = self._recorder.samples
        if not self._whole:
            samples = msgspec.structs.replace(samples, order=())
        agenda = SteeringAgenda.of(samples, self._shape, companion=self._companion)
        wanted = agenda.next(partial(self._recorder.measurer.takes_s, timed=True), self._precision)
        return [] if wanted is None else [wanted]
