"""What was seen of a training step, as a file: with it a step can be traced without a GPU.

Those of ``studies/zoo/ordinary.py`` were written on an H200 by a study that is gone
(``git show 94fdc672:studies/traced.py``, ``--record FOLDER``).
"""

import gzip
from pathlib import Path
from typing import Any

import msgspec

from underclock.core.tracing.captured import PlainRun, captured_step, profiled_step
from underclock.core.tracing.profile import HostTimeline, activities, captured_calls
from underclock.records.work import Node, Traced, TracedActivity

_FACTS = frozenset(
    (
        *("correlation", "grid", "block", "device", "stream", "bytes"),
        *("Sequence number", "Fwd thread id", "Input type", "Input Dims", "Input Strides"),
        *("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size"),
        *("Process Group Name", "wait_on_stream", "wait_on_cuda_event_record_corr_id"),
    )
)


class Recording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was seen of a step.

    Attributes:
        trace: PyTorch's of a plain run, without what tracing does not read.
        nodes: Of the captured graphs; none where it was not captured.
        capture: PyTorch's trace of that capture.
        cleared: As for `step.launch_groups`.
        sizes: Numbers that came out of the step's data.
        about: On what it was recorded.
        step_s: What the step takes when nobody looks; ``None`` where that was not timed.
    """

    trace: dict[str, Any]
    nodes: tuple[Node, ...] = ()
    capture: dict[str, Any] | None = None
    cleared: tuple[tuple[int, ...], ...] = ()
    sizes: tuple[int, ...] = ()
    about: str = ""
    step_s: float | None = None

    @property
    def seen(self) -> tuple[TracedActivity, ...]:
        """What the GPU did in the plain run."""
        return activities(HostTimeline(self.trace))

    def traced(self, name: str) -> Traced:
        """Trace the step, as `underclock trace` does."""
        plain = PlainRun(self.trace)
        if not self.nodes:
            return profiled_step(name, plain)
        calls = captured_calls(self.capture) if self.capture else ()
        return captured_step(
            name, self.nodes, calls, plain, cleared=self.cleared, data_sizes=self.sizes
        )


def read(path: Path) -> Recording:
    """Read a recording."""
    return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=Recording)


def write(path: Path, recording: Recording) -> None:
    """Write a recording; the same one makes the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(msgspec.json.encode(recording), compresslevel=9, mtime=0))
