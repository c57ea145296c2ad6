"""Decode and prefill of a Llama-like model on this machine's GPU, read-only.

    UNDERCLOCK_READ_ONLY=1 python studies/decode.py FOLDER [PART ...] [--seconds 540] [--gpu nvml:0]

Nothing is set on the GPU: a co-load makes its power cap lower the clock. A part is
``PHASE:BATCH:CONTEXT``, a step that is steered whole at a few clocks; after ``kernels:`` its
kernels are as well. Samples go to ``samples.jsonl`` in the folder, a part a line, the board named
by a hash; ``decode.json`` says what else was read, and ``now.json`` is the part that was not ended.
What cannot be measured is told and passed over; what no time was left for is named at the end.
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
from underclock.campaign.progress import Tally
from underclock.campaign.recording import Recorder, WindowPolicy, record
from underclock.campaign.survey import Campaign, ClockControl
from underclock.core.design.agenda import SteeringAgenda
from underclock.core.design.wanted import Wanted
from underclock.core.model.parameters import unknown_gpu
from underclock.core.model.sample_sets import UNKNOWN_MHZ
from underclock.core.steering.mixing import DrawAtClock, mix_at
from underclock.core.step.cap import has_company
from underclock.core.step.whole import WHOLE, as_one
from underclock.errors import StuckError, UnderclockError
from underclock.hw.base import Measurer
from underclock.hw.clock import SystemClock
from underclock.hw.measurer import QUICK, GpuMeasurer
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import READ_ONLY, nvml_session
from underclock.records import ALONE, Evidence, Mix, Pass, SampleSet, Step, Window
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
RUNGS_MHZ = (1500, 1600, 1700, 1800, 1900)
ABOVE_MHZ = (0, 40, 80, 130)  # a rung at which too little of a round would be left
NEAR_MHZ = 60.0  # a rung that was missed by more is tried once more
KERNEL_RUNGS_MHZ = (1500, 1850, 1700)
MOST_OF_STEP = 0.9  # of its time, for which kernels are taken to rungs
MOST_OF_CO_LOAD, MOST_FAILURES = 12, 8
KERNELS_S, WHOLE_S = 225.0, 50.0  # of a part, its making ready included
LEAST_S, END_S = 35.0, 8.0  # left to begin a part; kept from it to write all down
NOW = "now.json"  # what is measured so far of the part that runs
REPLAYS, PART_OF_MANY = 500, 1.0  # single steps that are timed; at most for so long


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


class Wanting(WindowPolicy):
    """Wants the step at auto, the co-load, the step at a few clocks, then its kernels.

    What cannot be measured is wanted no more, and all else still is.

    Attributes:
        last: What was wanted last; ``None`` at the end.
    """

    def __init__(self, recorder: Recorder, part: Part, long: Measurer, deadline_s: float) -> None:
        self.last: Wanted | None = None
        self._recorder = recorder
        self._brisk, self._long = recorder.measurer, long
        self._part = part
        self._deadline_s = deadline_s
        header = recorder.file.header
        self._shape = unknown_gpu(
            [UNKNOWN_MHZ],
            fastest_mhz=float(max(c.core_mhz for c in header.settings if c.core_mhz)),
            most_w=header.gpu.power_limit_w or 1.0,
        )
        self._auto = AT_AUTO
        self._rungs = list(RUNGS_MHZ)
        self._asked_mhz: float | None = None
        self._steps = 0
        self._tried: set[tuple[str, int]] = set()
        self._failed: set[str] = set()

    def next(self, spent_s: float, pending: Sequence[Wanted] = ()) -> list[Wanted]:
        """Return what comes next; nothing after the deadline."""
        del spent_s, pending
        self.last = None
        if self._brisk.now_s() >= self._deadline_s:
            return []
        self._recorder.measurer = self._long if self._auto else self._brisk
        if self._auto:
            self._auto -= 1
            self.last = Wanted("", ALONE)
        else:
            self.last = self._of_whole() or (self._of_kernels() if self._part.kernels else None)
        return [self.last] if self.last is not None else []

    def drop(self) -> bool:
        """Want no more of the kernel that was wanted last; return whether anything is left."""
        if self.last is None or self.last.mix == ALONE or not self.last.mix.launches:
            return self.last is not None and self._without(self.last.kernel)
        return not self.last.kernel or self._without(self.last.kernel)

    def _without(self, kernel: str) -> bool:
        self._failed.add(kernel)
        return bool(kernel)

    def _of_whole(self) -> Wanted | None:
        """Return what the agenda wants of the co-load, then the next rung that can be reached."""
        whole = as_one(self._recorder.samples)
        windows = tuple(w for w in whole.windows if w.kernel in {"", WHOLE.name})
        whole = msgspec.structs.replace(whole, order=(), windows=windows)
        agenda = SteeringAgenda.of(whole, self._shape)
        wanted = agenda.next(self._takes_s, goal=0.0)
        alone = sum(not w.kernel and not w.mix.launches for w in windows)
        if wanted is not None and not wanted.kernel and alone < MOST_OF_CO_LOAD:
            return wanted
        return self._rung(agenda)

    def _rung(self, agenda: SteeringAgenda) -> Wanted | None:
        """Return the step in company at the next rung, or once more where it was missed."""
        steps = [w for w in self._recorder.samples.windows if w.is_step and has_company(w.mix)]
        if self._asked_mhz is not None and len(steps) > self._steps:
            off_mhz = steps[-1].at_mhz - self._asked_mhz
            if abs(off_mhz) > NEAR_MHZ:
                self._rungs.insert(0, round(self._asked_mhz - off_mhz))
        again, self._asked_mhz, self._steps = self._asked_mhz is not None, None, len(steps)
        while self._rungs:
            rung = self._rungs.pop(0)
            found = _mix(rung, WHOLE.name, agenda)
            if found is not None:
                self._asked_mhz = None if again and rung not in RUNGS_MHZ else found[0]
                return Wanted("", found[1])
        return None

    def _of_kernels(self) -> Wanted | None:
        """Return the longest kernels alone and at two rungs, the others alone, then more rungs."""
        samples = self._recorder.samples
        step = next(w for w in samples.windows if w.is_step)
        counted = zip(samples.kernels, step.kernel_s, strict=True)
        taken_s = {k.name: k.waited_count * s for k, s in counted if k.name not in self._failed}
        names = sorted(taken_s, key=lambda name: -taken_s[name])
        kernels = {k.name: k for k in samples.kernels}
        windows = tuple(w for w in samples.windows if not w.is_step and w.kernel in {"", *names})
        of_kernels = msgspec.structs.replace(
            samples,
            kernels=tuple(kernels[name] for name in names),
            order=(),
            modules=(),
            windows=windows,
        )
        agenda = SteeringAgenda.of(of_kernels, self._shape)
        sums_s = list(itertools.accumulate(taken_s[name] for name in names))
        most = names[: 1 + sum(sum_s < MOST_OF_STEP * sums_s[-1] for sum_s in sums_s)]
        alone = {w.kernel for w in windows if w.mix == ALONE}
        first, second, *others = KERNEL_RUNGS_MHZ
        order = [(None, most), (first, most), (second, most), (None, names)]
        for rung, some in (*order, *((other, most) for other in others)):
            for name in some:
                if rung is None and name not in alone:
                    return Wanted(name, ALONE)
                if rung is not None and (name, rung) not in self._tried:
                    self._tried.add((name, rung))
                    found = _mix(rung, name, agenda)
                    if found is not None:
                        return Wanted(name, found[1])
        return None

    def _takes_s(self, launch_s: float) -> float:
        return self._brisk.takes_s(launch_s, timed=True)


def _mix(core_mhz: float, name: str, agenda: SteeringAgenda) -> tuple[float, Mix] | None:
    """Return the mix in which something runs at a clock, or at the next that can be reached.

    Returns:
        The clock and the mix; ``None`` where none changes the clock that it has by itself.
    """
    seen = [
        DrawAtClock(one.core_mhz, one.power_w, one.time_s, one.variance**0.5)
        for one in agenda.left[name]
        if one.power_w is not None and one.power_w > 0
    ]
    if not seen or agenda.bench is None:
        return None
    for above_mhz in ABOVE_MHZ:
        mix = mix_at(core_mhz + above_mhz, seen, agenda.bench)
        if mix is not None and has_company(mix):
            return core_mhz + above_mhz, mix
    return None


def steered(
    measurer: Measurer,
    long: Measurer,
    step: Step,
    part: Part,
    to: Path,
    known: Sequence[Window],
    deadline_s: float,
) -> list[str]:
    """Run a campaign on a step that is ready to run, into a file.

    Args:
        measurer: Takes windows in company, and of kernels.
        long: Takes the first windows of the step at auto; the same GPU.
        known: Of the co-load by itself, measured before.
        deadline_s: When nothing more is begun, as the measurer's clock tells it.

    Returns:
        What could not be measured, and why.
    """
    campaign = Campaign(clocks=ClockControl.STEER)
    header, _ = surveyed(measurer, step, campaign, gpu=ARGUMENTS.gpu, measuring=BRISK, seed=0)
    with SampleFile.create(to, header) as file:
        for window in known:
            file.append(window)
    failures: list[str] = []

    def take(recorder: Recorder) -> None:
        def tell(tally: Tally) -> None:
            now = nameless(recorder.file.sample_set())
            (ARGUMENTS.folder / NOW).write_bytes(msgspec.json.encode(now))
            print(f"  {tally.gpu_s:.1f} s {tally.doing}", flush=True)

        policy = Wanting(recorder, part, long, deadline_s)
        while True:
            try:
                CampaignRun(recorder, policy, campaign, tell).run()
            except StuckError:
                raise
            except (UnderclockError, RuntimeError) as exc:  # CUDA's and PyTorch's are the latter
                failures.append(f"{policy.last}: {type(exc).__name__}: {exc}")
                if not policy.drop() or len(failures) > MOST_FAILURES:
                    return
            else:
                return

    record(measurer, to, header, take)
    return failures


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
        spent_s = time.perf_counter() - begun_s
        left_s = ARGUMENTS.seconds - spent_s
        if left_s < LEAST_S:
            break
        part = left.pop(0)
        results["parts"][part.name] = measured = {"part": part.name, "tokens": part.tokens}
        take(part, min(KERNELS_S if part.kernels else WHOLE_S, left_s - END_S), measured, known)
        measured["took_s"] = time.perf_counter() - begun_s - spent_s
        results["left"] = [each.name for each in left]
        results["spent_s"] = time.perf_counter() - begun_s
        (folder / "decode.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(results), indent=1)
        )
        told = f"{measured.get('windows', 0)} windows; {measured.get('failed', 'nothing failed')}"
        print(f"{results['spent_s']:.0f} s {part.name}: {told}", flush=True)
    print("left:", *(each.name for each in left), flush=True)


def take(part: Part, for_s: float, measured: dict[str, Any], known: list[Window]) -> None:
    """Measure a part for so long, its making ready included; say in ``measured`` how it went.

    Args:
        known: Windows of the co-load by itself, where there are any yet; filled here.
    """
    begun_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as aside:
        to = Path(aside) / "samples.db"
        try:
            with ready(part, measured) as (brisk, long, step):
                measured["ready_s"] = time.perf_counter() - begun_s
                deadline_s = brisk.now_s() + for_s - measured["ready_s"]
                failures = steered(brisk, long, step, part, to, known, deadline_s)
                if failures:
                    measured["failed"] = failures
        except StuckError:
            raise
        except (UnderclockError, RuntimeError, OSError, ValueError) as exc:
            measured["failed"] = [f"{type(exc).__name__}: {exc}"]
        if not to.exists():
            return
        samples = nameless(SampleFile.read(to))
    known[:] = known or [w for w in samples.windows if not w.kernel and not w.mix.launches]
    measured |= {"gpu": msgspec.to_builtins(samples.gpu)} | summary(samples)
    with (ARGUMENTS.folder / "samples.jsonl").open("ab") as lines:
        lines.write(msgspec.json.encode(samples) + b"\n")
    (ARGUMENTS.folder / NOW).unlink(missing_ok=True)


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
