"""When every rank runs what: spans that cover what instructions take, at the clocks they run at."""

import pytest

from small_jobs import at_auto, small_job
from underclock.core.job.network import network_of
from underclock.core.job.tables import auto_clocks, timeline
from underclock.records.job import Held


def test_spans_at_auto_are_the_network_s() -> None:
    job = small_job(stages=2, microbatches=2, transfer_s=(0.05,))
    net, taken_s = network_of(job), at_auto(job)
    spans = timeline(job, auto_clocks(job))
    assert [span.begins_s for span in spans] == pytest.approx(list(net.begins_s(taken_s)))
    assert [span.ends_s for span in spans] == pytest.approx(list(net.ends_s(taken_s)))
    assert {span.core_mhz for span in spans if span.has_profile} == {1400}
    assert {span.core_mhz for span in spans if not span.has_profile} == {None}
    assert spans[0].what == "forward of microbatch 0"


def test_an_instruction_at_two_clocks_is_two_spans() -> None:
    job = small_job(stages=1, microbatches=1)
    spans = timeline(job, ((Held(0, 2, 0.5), Held(2)),))
    assert [span.core_mhz for span in spans] == [1000, 1400, 1400]
    first, second, third = spans
    assert first.ends_s == second.begins_s == pytest.approx(0.5 * 0.1 * 1.4)
    assert second.ends_s == third.begins_s == pytest.approx(0.5 * 0.1 * 1.4 + 0.05)
