"""Decode and prefill of a Llama-like model on this machine's GPU, read-only.

    UNDERCLOCK_READ_ONLY=1 python studies/decode.py FOLDER [PART ...] [--seconds 540] [--gpu nvml:0]

Nothing is set on the GPU: a co-load makes its power cap lower the clock. A part is ``PHASE:BATCH:
CONTEXT``, steered whole at a few clocks, or ``kernels:PHASE:BATCH:CONTEXT``, whose kernels are
steered as `underclock measure` does. Samples go to ``samples.jsonl`` in the folder, a part a line,
the board named by a hash; ``decode.json`` there says what else was read. What no time was left for
is named at the end.
On a simulated GPU the steps are those of ``llama3-8b-…`` with as many layers.
"""

import argparse
import hashlib
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from underclock.app.backends import open_measurer
from underclock.app.measuring import surveyed
from underclock.campaign.loop import CampaignRun
from underclock.campaign.recording import Recorder, record
from underclock.campaign.steer import Steering
from underclock.campaign.survey import Campaign, ClockControl
from underclock.core.design.agenda import SteeringAgenda
from underclock.core.design.wanted import Wanted
from underclock.core.model.parameters import unknown_gpu
from underclock.core.model.sample_sets import UNKNOWN_MHZ
from underclock.core.steering.mixing import DrawAtClock, mix_at
from underclock.core.step.cap import has_company
from underclock.core.step.whole import WHOLE
from underclock.errors import StuckError, UnderclockError
from underclock.hw.base import Measurer
from underclock.hw.clock import SystemClock
from underclock.hw.measurer import QUICK, GpuMeasurer
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import READ_ONLY, nvml_session
from underclock.records import ALONE, Evidence, Pass, SampleSet, Step, Window
from underclock.store import SampleFile
from underclock.workloads import workload

BATCHES, CONTEXTS, PROMPTS = (1, 8, 32, 128), (1024, 8192), (1024, 8192)
WHOLE_PARTS = (
    *(f"decode:{batch}:{context}" for context in CONTEXTS for batch in BATCHES),
    *(f"prefill:1:{context}" for context in PROMPTS),
)
KERNEL_PARTS = ("kernels:decode:8:1024", "kernels:decode:32:1024")
LAYERS, VOCABULARY = 4, 16032  # as the model in the zoo
BRISK = msgspec.structs.replace(
    QUICK, warm_s=2.0, steady_s=1.0, longest_warm_s=5.0, kernel_warm_s=0.3, window_s=1.0
)
LONG = msgspec.structs.replace(BRISK, window_s=2.2)
AT_AUTO = 2  # windows
RUNGS_MHZ = (1500, 1530, 1560, 1620, 1700, 1800, 1900)
MOST_RUNGS, MOST_STEPS = 5, 512
KERNELS_S, LEAST_S = 170.0, 45.0
REPLAYS, PART_OF_MANY = 1000, 3.0  # single steps that are timed; at most for so long


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is measured: a step, whole or kernel by kernel."""

    phase: str
    batch: int
    context: int
    kernels: bool

    @classmethod
    def of(cls, text: str) -> "Part":
        """Read ``[kernels:]PHASE:BATCH:CONTEXT``."""
        *kernels, phase, batch, context = text.split(":")
        return cls(phase=phase, batch=int(batch), context=int(context), kernels=bool(kernels))

    @property
    def name(self) -> str:
        """Of its file and step."""
        return f"{self.phase}-b{self.batch}-c{self.context}" + ("-kernels" * self.kernels)

    @property
    def tokens(self) -> int:
        """That a step makes or reads."""
        return self.batch * (self.context if self.phase == Pass.PREFILL else 1)


class Rungs:
    """Wants what the co-load draws, then the step at a few clocks; a policy of a campaign.

    Attributes:
        total: None: it depends on what the co-load reaches.
        limit_s: GPU time at which it ends.
        short_of: None: it makes no promise.
    """

    total: int | None = None
    short_of: float | None = None
    why = ""

    def __init__(self, recorder: Recorder, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self._recorder = recorder
        header = recorder.file.header
        self._shape = unknown_gpu(
            [UNKNOWN_MHZ],
            fastest_mhz=float(max(c.core_mhz for c in header.settings if c.core_mhz)),
            most_w=header.gpu.power_limit_w or 1.0,
        )
        self._left = list(RUNGS_MHZ)
        self._ran = 0

    def begin(self) -> None:
        """Nothing is to be tried."""

    def at_once(self, window: Window) -> list[Wanted]:
        """Return nothing."""
        del window
        return []

    def next(self, spent_s: float, pending: Sequence[Wanted] = ()) -> list[Wanted]:
        """Return what the agenda wants of the co-load, then the next rung that can be reached."""
        del spent_s, pending
        samples = msgspec.structs.replace(self._recorder.samples, order=())
        agenda = SteeringAgenda.of(samples, self._shape)
        takes_s = partial(self._recorder.measurer.takes_s, timed=True)
        wanted = agenda.next(takes_s, goal=0.0)
        if wanted is not None and (not wanted.kernel or wanted.mix == ALONE):
            return [wanted]
        if agenda.bench is None:
            return []
        seen = [
            DrawAtClock(one.core_mhz, one.power_w, one.time_s)
            for one in agenda.left[WHOLE.name]
            if one.power_w is not None and one.power_w > 0
        ]
        while self._left and self._ran < MOST_RUNGS and seen:
            mix = mix_at(self._left.pop(0), seen, agenda.bench, most_launches=MOST_STEPS)
            if mix is not None and has_company(mix):
                self._ran += 1
                return [Wanted(WHOLE.name, mix)]
        return []


def steered(
    measurer: Measurer, long: Measurer, step: Step, part: Part, to: Path, known: Sequence[Window]
) -> SampleSet:
    """Run a campaign on a step that is ready to run.

    Args:
        measurer: Takes windows in company, and of kernels.
        long: Takes the first windows of the step at auto; the same GPU.
        known: Of the co-load by itself, measured before.
    """
    campaign = Campaign(clocks=ClockControl.STEER, time_limit_s=KERNELS_S)
    one = msgspec.structs.replace(step, kernels=(WHOLE,), order=(0,), modules=())
    shown = step if part.kernels else one
    header, _ = surveyed(measurer, shown, campaign, gpu=ARGUMENTS.gpu, measuring=BRISK, seed=0)
    header = msgspec.structs.replace(
        header,
        kernels=step.kernels,
        order=step.order,
        modules=(),
        fingerprint=step.fingerprint,
    )
    with SampleFile.create(to, header) as file:
        for window in known:
            file.append(window)

    def take(recorder: Recorder) -> None:
        measurer.warm(header.launches)
        recorder.measurer = long
        for _ in range(AT_AUTO):
            recorder.take(Wanted("", ALONE))
        recorder.measurer = measurer
        policy: Any = Steering(recorder, campaign)
        if not part.kernels:
            policy = Rungs(recorder, None)
        CampaignRun(recorder, policy, campaign, lambda _tally: None).run()

    return record(measurer, to, header, take, whole=not part.kernels)


@contextmanager
def ready(part: Part, measured: dict[str, Any]) -> Iterator[tuple[Measurer, Measurer, Step]]:
    """Make a step ready to run; of a real one tell how long single runs take."""
    if not ARGUMENTS.gpu.startswith("nvml:"):
        sizes = {"batch": part.batch, "context": part.context, "layers": LAYERS}
        step = workload(f"llama3-8b-{part.phase}", sizes | {"vocabulary": VOCABULARY})
        with open_measurer(ARGUMENTS.gpu, measuring=BRISK, step=step) as measurer:
            yield measurer, measurer, step
        return
    from underclock.tracing.captured import measured_step  # noqa: PLC0415 - needs PyTorch
    from underclock.tracing.held import real_notes  # noqa: PLC0415
    from zoo import serve  # noqa: PLC0415

    function = partial(getattr(serve, part.phase), part.batch, part.context)
    with measured_step(function, name=part.name) as launcher:
        step = launcher.traced.step
        measured["obstacle"] = step.obstacle
        if not step.obstacle:
            measured |= single_steps(launcher)
        gpu = NvmlGpu(int(ARGUMENTS.gpu.partition(":")[2]))
        brisk, long = (
            GpuMeasurer(
                gpu,
                launcher,
                SystemClock(),
                evidence=Evidence.MEASURED,
                measuring=measuring,
                may_lock=False,
                notes=real_notes(gpu),
                step=step,
            )
            for measuring in (BRISK, LONG)
        )
        yield brisk, long, step


def single_steps(launcher: Any) -> dict[str, Any]:  # noqa: ANN401 - of a captured step
    """Time single replays of a step's graph at auto, one after the other, the host ahead."""
    import torch  # noqa: PLC0415

    torch_: Any = torch
    launcher.snapshot.restore_contents()
    stream = torch_.cuda.Stream()

    def run(times: int) -> list[float]:
        marks = [torch_.cuda.Event(enable_timing=True) for _ in range(times + 1)]
        with torch_.cuda.stream(stream):
            marks[0].record()
            for mark in marks[1:]:
                launcher.captured.parts.replay()
                mark.record()
        torch_.cuda.synchronize()
        return [1e-3 * a.elapsed_time(b) for a, b in itertools.pairwise(marks)]

    once_s = statistics.median(run(20))
    times = max(100, min(REPLAYS, round(PART_OF_MANY / once_s)))
    run(times)  # warm
    taken_s = sorted(run(times))
    return {
        "single_steps": times,
        "p50_s": statistics.median(taken_s),
        "p99_s": taken_s[min(times - 1, round(0.99 * times))],
        "mean_s": statistics.fmean(taken_s),
    }


def nameless(samples: SampleSet) -> SampleSet:
    """Return samples whose board is named by a hash."""
    if samples.gpu.uuid is None:
        return samples
    board = hashlib.sha256(samples.gpu.uuid.encode()).hexdigest()[:8]
    gpu = msgspec.structs.replace(samples.gpu, uuid=f"board-{board}")
    return msgspec.structs.replace(samples, gpu=gpu)


def summary(samples: SampleSet) -> dict[str, Any]:
    """Return what is worth a look at once."""
    steps = [w for w in samples.windows if w.is_step]
    return {
        "windows": len(samples.windows),
        "kernels": len(samples.kernels),
        "launches": len(samples.order),
        "auto": [
            {
                "time_us": 1e6 * w.time_s,
                "power_w": w.energy_j / w.time_s,
                "core_mhz": w.core_mhz,
                "window_s": w.window_s,
                "ticks": w.ticks,
                "temperature_c": w.temperature_c,
                "reasons": w.throttle_reasons,
            }
            for w in steps
            if w.mix == ALONE
        ],
        "steered": [
            {
                "core_mhz": w.core_mhz,
                "spread_mhz": w.core_spread_mhz,
                "step_us": 1e6
                * sum(k.count * s for k, s in zip(samples.kernels, w.kernel_s, strict=False)),
                "power_w": w.energy_j / w.time_s,
                "mix": str(w.mix),
            }
            for w in steps
            if w.mix != ALONE
        ],
    }


def main() -> None:
    """Measure part after part; write what is known after each, so that a stop loses little."""
    real = ARGUMENTS.gpu.startswith("nvml:")
    if real and os.environ.get(READ_ONLY, "0") in {"", "0"}:
        raise SystemExit(f"set {READ_ONLY}=1: this script measures a GPU as it is")
    folder: Path = ARGUMENTS.folder
    folder.mkdir(parents=True, exist_ok=True)
    begun_s = time.perf_counter()
    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "gpu": ARGUMENTS.gpu, "parts": {}}
    known: list[Window] = []
    left = [Part.of(text) for text in ARGUMENTS.parts or (*WHOLE_PARTS, *KERNEL_PARTS)]
    while left:
        part = left[0]
        spent_s = time.perf_counter() - begun_s
        if spent_s + (KERNELS_S if part.kernels else LEAST_S) > ARGUMENTS.seconds:
            break
        measured: dict[str, Any] = {"part": left.pop(0).name, "tokens": part.tokens}
        try:
            with (
                tempfile.TemporaryDirectory() as aside,
                ready(part, measured) as (brisk, long, step),
            ):
                to = Path(aside) / "samples.db"
                measured["ready_s"] = time.perf_counter() - begun_s - spent_s
                samples = nameless(steered(brisk, long, step, part, to, known))
            known = known or [w for w in samples.windows if not w.kernel and not w.mix.launches]
            measured |= {"gpu": msgspec.to_builtins(samples.gpu)} | summary(samples)
            with (folder / "samples.jsonl").open("ab") as lines:
                lines.write(msgspec.json.encode(samples) + b"\n")
        except StuckError:
            raise
        except (UnderclockError, RuntimeError) as exc:  # CUDA's and PyTorch's are the latter
            measured["failed"] = f"{type(exc).__name__}: {exc}"
        measured["took_s"] = time.perf_counter() - begun_s - spent_s
        results["parts"][part.name] = measured
        results["left"] = [each.name for each in left]
        results["spent_s"] = time.perf_counter() - begun_s
        (folder / "decode.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(results), indent=1)
        )
        told = measured.get("failed") or f"{measured['windows']} windows"
        print(f"{results['spent_s']:.0f} s {part.name}: {told}", flush=True)
    print("left:", *(each.name for each in left), flush=True)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--gpu", default="nvml:0")
    parser.add_argument("--seconds", type=float, default=540.0)
    return parser.parse_args()


if __name__ == "__main__":
    ARGUMENTS = arguments()
    try:
        if ARGUMENTS.gpu.startswith("nvml:"):
            with nvml_session():
                main()
        else:
            main()
    except StuckError as stuck:
        print(stuck, *stuck.__notes__, sep="; ", flush=True)
        os._exit(stuck.exit_code)  # to end as usual is to wait for the GPU
