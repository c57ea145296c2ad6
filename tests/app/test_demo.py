"""A demo that is interrupted, and what it does with a folder that is not its own."""

from pathlib import Path

import pytest

from underclock.app.demo import run_demo
from underclock.campaign.progress import Tally
from underclock.errors import UsageError
from underclock.store import SampleFile


@pytest.mark.slow
def test_an_interrupted_demo_goes_on_where_it_stopped(tmp_path: Path) -> None:
    samples = tmp_path / "samples.db"

    def stop_at_40(tally: Tally) -> None:
        if tally.done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_demo(tmp_path, progress=stop_at_40)
    first = SampleFile.read(samples).samples
    assert first
    (tmp_path / "plan.json").write_text("as where validating was interrupted")
    told: list[int] = []

    def stop_20_later(tally: Tally) -> None:
        told.append(tally.done)
        if tally.done >= told[0] + 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_demo(tmp_path, progress=stop_20_later)
    assert told[0] >= len(first)
    second = SampleFile.read(samples).samples
    assert len(second) > len(first)
    assert second[: len(first)] == first

    with pytest.raises(KeyboardInterrupt):
        run_demo(tmp_path, progress=stop_at_40, force=True)
    assert len(SampleFile.read(samples).samples) <= 40


@pytest.mark.parametrize("name", ["samples.db", "plan.json", "step.json"])
def test_what_no_demo_wrote_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError):
        run_demo(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]
