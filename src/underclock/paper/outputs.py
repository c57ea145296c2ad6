"""What the study leaves in a folder: numbers, a page, and drawings where they were asked for."""

from dataclasses import dataclass
from pathlib import Path

from underclock.errors import UsageError
from underclock.paper.page import CHART_KEYS, paper_drawings, paper_page
from underclock.paper.records import Study
from underclock.paper.study import Conditions, run_study, simulated_gpu
from underclock.store import check_output, write_document, write_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The files that a study is written to."""

    folder: Path
    """Made if it is missing."""
    svg: bool = False
    """Whether every drawing also becomes a file of its own."""
    force: bool = False
    """Whether files of an earlier study may be replaced."""

    @property
    def data(self) -> Path:
        """The file with every number."""
        return self.folder / "paper.json"

    @property
    def page(self) -> Path:
        """The page for a reader."""
        return self.folder / "paper.html"

    @property
    def drawings(self) -> dict[str, Path]:
        """Files of the drawings, by the chart's key."""
        return {key: self.folder / f"{key}.svg" for key in CHART_KEYS} if self.svg else {}


def run_paper(conditions: Conditions | None = None, outputs: Outputs | None = None) -> Study:
    """Run the paper's study, and write it down.

    Args:
        conditions: Where and how to run it; by default the paper's.
        outputs: Where it goes; nowhere by default.

    Raises:
        UsageError: Not a simulated GPU, no such model, or a folder that holds an earlier study.
        DeviceError, MeasurementError: From the GPU.
    """
    conditions = conditions or Conditions()
    simulated_gpu(conditions.gpu)  # refuses before a folder is made
    if outputs is not None:
        _prepare(outputs)
    study = run_study(conditions)
    if outputs is not None:
        _write(study, outputs)
    return study


def _prepare(outputs: Outputs) -> None:
    """Refuse what cannot be written, before any work is spent on it."""
    try:
        outputs.folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"cannot make {outputs.folder}: {exc.strerror}") from exc
    for path in (outputs.data, outputs.page, *outputs.drawings.values()):
        check_output(path, force=outputs.force)


def _write(study: Study, outputs: Outputs) -> None:
    write_document(outputs.data, study, force=outputs.force)
    write_text(outputs.page, paper_page(study), force=outputs.force)
    drawn = paper_drawings(study) if outputs.svg else {}
    for key, path in outputs.drawings.items():
        write_text(path, drawn[key], force=outputs.force)
