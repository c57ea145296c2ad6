"""One campaign on several workers that are made up: what they hand over is on file, once."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from sample_files import HEADER, sample
from underclock.campaign.loop import Listed
from underclock.campaign.recording import Elsewhere, Gathered, Outbox
from underclock.campaign.survey import Campaign
from underclock.campaign.together import (
    Answered,
    Died,
    Joined,
    Refused,
    TogetherRun,
    Told,
)
from underclock.core.design.wanted import Wanted
from underclock.errors import DataError, DeviceError, MeasurementError, UsageError
from underclock.hw.base import Capability
from underclock.records import (
    Clocks,
    Evidence,
    GpuInfo,
    MeasurementSettings,
    Provenance,
    SampleSet,
    Window,
)
from underclock.store import SampleFile

if TYPE_CHECKING:
    from underclock.campaign.progress import Tally

BEGUN = msgspec.structs.replace(
    HEADER,
    gpu=GpuInfo(name="G", uuid="GPU-0", driver="1.2", power_limit_w=350.0),
    provenance=Provenance(measuring=MeasurementSettings(), in_situ=True),
)
CLOCKS = [Clocks(core_mhz=mhz) for mhz in range(900, 1500, 100)]
POINTS = [(clocks, list(BEGUN.kernels)) for clocks in CLOCKS]
CAMPAIGN = Campaign(grid="coarse")  # type: ignore[arg-type]  # read as text is


@dataclass
class Fakes:
    """Workers of which some die at their n-th list of windows."""

    headers: dict[str, SampleSet]
    dies_at: dict[str, set[int]] = field(default_factory=dict)
    never: frozenset[str] = frozenset()
    refuses: str = ""
    lists: Counter[str] = field(default_factory=Counter)
    happened: deque[Told] = field(default_factory=deque)
    taken: list[Window] = field(default_factory=list)

    def start(self, worker: str) -> None:
        if worker in self.never:
            self.happened.append(Died(worker=worker, why="no such host"))
            return
        self.happened.append(
            Joined(
                worker=worker,
                header=self.headers[worker],
                points=POINTS,
                capabilities=frozenset({Capability.RUN}),
                process=1,
            )
        )

    def take(self, worker: str, wanted: Sequence[Wanted]) -> None:
        self.lists[worker] += 1
        if self.refuses == worker:
            error = MeasurementError("it is hot")
            self.happened.append(Refused(worker=worker, error=error))
            return
        if self.lists[worker] in self.dies_at.get(worker, ()):
            self.happened.append(Died(worker=worker, why="killed"))
            return
        outbox = Outbox(self.headers[worker])
        for one in wanted:
            self.taken.append(
                msgspec.structs.replace(
                    sample(kernel=one.kernel, asked=one.asked), time_s=1 + len(self.taken) / 64
                )
            )
            outbox.append(self.taken[-1], gpu_s=2.0)
        outbox.note([f"{worker} was here"])
        assert outbox.taken == len(wanted)
        windows, notes = outbox.emptied()
        self.happened.append(Answered(worker=worker, windows=windows, notes=notes))

    def told(self) -> Told:
        return self.happened.popleft()


def run(fakes: Fakes, folder: Path, campaign: Campaign = CAMPAIGN) -> list[SampleSet]:
    folder.mkdir(exist_ok=True)
    tallies: list[Tally] = []
    paths = TogetherRun(
        fakes,
        list(fakes.headers),
        folder,
        campaign,
        lambda gathered, points: Listed(gathered, points, campaign),
        virtual=True,
        progress=tallies.append,
    ).run()
    assert tallies
    return [SampleFile.read(path) for path in paths]


def test_a_campaign_takes_until_the_last_is_done(tmp_path: Path) -> None:
    """Nine windows of two seconds on two GPUs: one of them waits for the last."""
    (tmp_path / "parts").mkdir()
    few = [(clocks, kernels) for clocks, kernels in POINTS[:4]]
    tallies: list[Tally] = []
    TogetherRun(
        Fakes(alike("0", "1")),
        ["0", "1"],
        tmp_path / "parts",
        CAMPAIGN,
        lambda gathered, _points: Listed(gathered, few, CAMPAIGN),
        virtual=True,
        progress=tallies.append,
    ).run()
    assert len(EVERY) == 13
    assert tallies[-1].gpu_s == 10.0


def whats(windows: Sequence[Window]) -> Counter[object]:
    return Counter(window.what for window in windows)


EVERY = Counter([("", sample().mix, sample().asked)]) + Counter(
    (kernel.name, sample().mix, clocks) for clocks, kernels in POINTS for kernel in kernels
)


def alike(*names: str) -> dict[str, SampleSet]:
    return dict.fromkeys(names, BEGUN)


def test_everything_is_taken_once_and_shared_out(tmp_path: Path) -> None:
    found = run(Fakes(alike("0", "1", "2")), tmp_path / "parts")

    assert whats([w for each in found for w in each.windows]) == EVERY
    assert all(len(each.windows) > 2 for each in found)
    assert found[1].warnings == ("take care", "1 was here")
    with SampleFile.open(tmp_path / "parts" / "0.db", writable=False) as file:
        assert file.gpu_s == 2.0 * file.taken


def test_what_dies_is_started_again_and_nothing_handed_over_is_lost(tmp_path: Path) -> None:
    fakes = Fakes(alike("0", "1"), dies_at={"0": {1, 3, 4}, "1": {2}})
    found = run(fakes, tmp_path / "parts")

    windows = [w for each in found for w in each.windows]
    assert whats(windows) == EVERY
    assert Counter(w.time_s for w in windows) == Counter(w.time_s for w in fakes.taken)


def test_a_worker_that_never_comes_is_done_without(tmp_path: Path) -> None:
    found = run(Fakes(alike("0", "1"), never=frozenset("0")), tmp_path / "parts")
    assert whats(found[0].windows) == EVERY

    with pytest.raises(DeviceError, match="no worker is left: no such host"):
        run(Fakes(alike("0", "1"), never=frozenset("01")), tmp_path / "none")


def test_where_all_die_again_and_again_it_ends_and_goes_on_later(tmp_path: Path) -> None:
    fakes = Fakes(alike("0"), dies_at={"0": set(range(3, 99))})
    with pytest.raises(DeviceError, match="no worker is left: killed") as caught:
        run(fakes, tmp_path / "parts")
    assert "on file" in caught.value.hint
    before = SampleFile.read(tmp_path / "parts" / "0.db").windows
    assert before

    (found,) = run(Fakes(alike("0")), tmp_path / "parts")

    assert whats(found.windows) == EVERY
    assert found.windows[: len(before)] == before


def test_what_a_worker_says_is_wrong_is_raised(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="it is hot"):
        run(Fakes(alike("0", "1"), refuses="1"), tmp_path / "parts")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"name": "H"}, "workers a and b are of two GPU models: G and H"),
        ({"driver": "2"}, "workers a and b are of two drivers: 1.2 and 2"),
        ({"power_limit_w": 300.0}, "workers a and b are of two power limits: 350.0 and 300.0"),
    ],
)
def test_unlike_workers_are_refused_by_name(
    tmp_path: Path, changed: dict[str, object], words: str
) -> None:
    other = msgspec.structs.replace(BEGUN, gpu=msgspec.structs.replace(BEGUN.gpu, **changed))

    with pytest.raises(DataError, match=words):
        run(Fakes({"a": BEGUN, "b": other}), tmp_path / "parts")
    assert list((tmp_path / "parts").iterdir()) == []


def test_each_of_several_boards_runs_the_step_and_has_a_file_of_its_name(tmp_path: Path) -> None:
    headers = {
        f"host-{n}": msgspec.structs.replace(
            BEGUN,
            evidence=Evidence.MEASURED,
            gpu=msgspec.structs.replace(BEGUN.gpu, uuid=f"GPU-{n}b-1"),
        )
        for n in range(2)
    }
    found = run(Fakes(headers), tmp_path / "parts")

    assert [len(each.in_situ) for each in found] == [4, 4]
    assert sorted(p.name for p in (tmp_path / "parts").iterdir()) == ["host-0b.db", "host-1b.db"]


def test_limits_end_it(tmp_path: Path) -> None:
    few = Campaign(max_samples=7)
    found = run(Fakes(alike("0", "1")), tmp_path / "few", few)
    assert sum(len(each.windows) for each in found) == 7

    other = msgspec.structs.replace(BEGUN, workload="another")
    with pytest.raises(UsageError, match="holds samples of another workload"):
        run(Fakes({"0": other}), tmp_path / "few")


def test_what_is_asked_of_gpus_elsewhere() -> None:
    elsewhere = Elsewhere(capabilities=frozenset(), measuring=MeasurementSettings())
    gathered = Gathered(elsewhere, BEGUN, lambda: (BEGUN, BEGUN))

    assert gathered.measurer.takes_s(1.0) == 45.0
    assert gathered.measurer.can_measure(BEGUN.kernels[0], CLOCKS[0])
    assert gathered.measurer.repeats(BEGUN.kernels[0], CLOCKS[0]) is None
    assert Outbox(BEGUN).emptied() == ((), ())
