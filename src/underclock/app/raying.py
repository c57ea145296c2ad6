"""measure --ray: a campaign on many GPUs, each over its share of the kernels.

Every GPU runs `measure` in a task of Ray. What a task has taken goes to a desk, an actor that holds
it until the driver has it on file; all files are merged at the end.
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from underclock.app.backends import default_measuring, open_gpu
from underclock.app.measuring import measure
from underclock.campaign.grid import Campaign
from underclock.campaign.progress import Tally
from underclock.errors import (
    DeviceError,
    NotSupportedError,
    StuckError,
    UnderclockError,
    UsageError,
)
from underclock.hw.base import Capability, parse_gpu
from underclock.hw.interrupts import INTERRUPTS
from underclock.records import MeasurementSettings, SampleSet, Step
from underclock.runtime.undo.ownership import Process, family_of
from underclock.store import SampleFile, check_output, is_merged, merge
from underclock.tracing.source import StepFile, StepFunction, as_step

_LOOK_S = 1.0  # between looks at the tasks, and between what one of them hands over
_ANSWER_S = 60.0  # until Ray itself is taken to be gone
_END_S = 3.0  # of Ray, whose own shutdown waits for ever where a node agent is stopped
_SILENT_S = 900.0  # the same of a GPU: opening it may trace and compile a step
_GOES_ON = "what was measured is on file: the same command goes on from there"
_Part = tuple[int, str]  # a share, and the board that measured it


class _Desk:
    """The files of all parts, and what came since the driver last looked."""

    def __init__(self, files: dict[_Part, bytes]) -> None:
        self._files = files
        self._told: dict[_Part, tuple[Tally | None, bytes]] = {}

    def file(self, part: _Part) -> bytes:
        """Return what there is of a part."""
        self._told[part] = None, self._files.get(part, b"")
        return self._files.get(part, b"")

    def tell(self, part: _Part, tally: Tally, body: bytes) -> None:
        """Take what a part's file holds by now."""
        self._files[part] = body
        self._told[part] = tally, body

    def emptied(self) -> dict[_Part, tuple[Tally | None, bytes]]:
        """Return what came since the last time."""
        since, self._told = self._told, {}
        return since


def _measured(desk: Any, gpu: str, asked: dict[str, Any]) -> UnderclockError | None:  # noqa: ANN401
    """Measure a share in a process of Ray's; return what is wrong."""
    ray = _ray()
    try:
        board = f"seed-{asked['seed']}"
        if not parse_gpu(gpu).is_simulated:
            gpu = f"nvml:{ray.get_gpu_ids()[0]}"
            with open_gpu(parse_gpu(gpu)) as opened:
                board = (opened.gpu.info().uuid or "").removeprefix("GPU-").partition("-")[0]
        part = asked["campaign"].share[0], board
        with TemporaryDirectory() as folder:
            file, told_s = Path(folder) / "samples.db", time.monotonic()
            if body := ray.get(desk.file.remote(part), timeout=_ANSWER_S):
                file.write_bytes(body)

            def tell(tally: Tally) -> None:
                nonlocal told_s
                if tally.doing == "done" or time.monotonic() - told_s >= _LOOK_S:
                    with SampleFile.open(file, writable=False) as made:
                        answer = desk.tell.remote(part, tally, made.body())
                    ray.get(answer, timeout=_ANSWER_S)
                    told_s = time.monotonic()

            measure(gpu=gpu, to=file, progress=tell, **asked)
    except UnderclockError as exc:  # as a value, for Ray would wrap it
        return exc
    except ray.exceptions.GetTimeoutError:
        return DeviceError(
            f"the GPU {gpu} could not hand over what it measured in {_ANSWER_S:.0f} s: the desk "
            "that keeps it, or its node, does not answer",
            hint=f"`ray status` shows the nodes; {_GOES_ON}",
        )
    return None


def _ray() -> Any:  # noqa: ANN401 - Ray is not needed, and its types neither
    try:
        import ray
    except ImportError as exc:
        raise NotSupportedError(
            f"Ray is not installed: {exc}",
            hint="pip install 'underclock[ray]'; or measure each GPU by itself, then `underclock "
            "merge`",
        ) from exc
    return ray


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Connect to a Ray cluster, by default the one of RAY_ADDRESS or of this host, or start one."""
    ray = _ray()
    begins, before = not ray.is_initialized(), family_of(os.getpid())
    handlers = {number: signal.getsignal(number) for number in INTERRUPTS}
    if begins:
        try:
            ray.init(address=address or None, log_to_driver=False, include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as exc:
            raise DeviceError(
                f"no Ray answers at {address or 'this host'}: {exc}",
                hint="`ray start --head` starts one; --ray without an address starts its own",
            ) from exc
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():  # Ray puts its own there
            signal.signal(number, handler)
    try:
        yield ray
    finally:
        if begins:
            _end(ray, {*family_of(os.getpid())} - {*before})


def _end(ray: Any, started: set[Process]) -> None:  # noqa: ANN401 - see `_ray`
    """End Ray, and what it started here by force where it does not end in time."""
    ending = threading.Thread(target=ray.shutdown, daemon=True)
    ending.start()
    ending.join(_END_S)
    if not ending.is_alive():
        return
    for each in started:
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)
    atexit.unregister(ray.shutdown)
    before = sys.exception()
    stuck = StuckError(
        f"{f'{before}; ' if before else ''}Ray did not end in {_END_S:g} s: a node of its cluster "
        "does not answer",
        hint=f"`ray status` shows the nodes; {_GOES_ON}",
    )
    stuck.exit_code = getattr(before, "exit_code", stuck.exit_code)
    raise stuck


def gpus_of(text: str) -> list[str]:
    """Return the GPUs that are named, by commas and as ``NAME*COUNT``."""
    gpus: list[str] = []
    for part in text.split(","):
        one, mark, count = part.rpartition("*")
        if mark and not (count.isascii() and count.isdecimal() and int(count)):
            raise UsageError(f"cannot read {part!r} as GPUs", hint="write sim:rtx3080ti*8")
        gpus += [one] * int(count) if mark else [part]
    return gpus


def measure_together(
    step: Step | str | Path | None,
    *,
    gpus: Sequence[str],
    to: str | Path,
    address: str = "",
    campaign: Campaign | None = None,
    measuring: MeasurementSettings | None = None,
    progress: Callable[[Tally], None] | None = None,
    run: StepFunction | StepFile | None = None,
) -> tuple[SampleSet, ...]:
    """Measure a step's kernels on many GPUs, each over its share, in tasks of Ray.

    Each GPU's file lies in a folder next to the merged one, from which the same call goes on.

    A simulated GPU is named for each share; ``nvml`` alone is every GPU of the cluster. Without an
    address a cluster is found or started. The samples of each board are returned.
    """
    to, traced = Path(to), as_step(step)
    if traced is None or traced.obstacle:
        raise UsageError(
            "many GPUs share the kernels of a step; here is no step, or one that only runs whole",
            hint="`underclock trace` makes a step; what runs whole is measured without --ray",
        )
    for gpu in gpus:
        parse_gpu(gpu).need(Capability.RUN)
    campaign = campaign or Campaign()
    check_output(to, force=is_merged(to), over_samples=is_merged(to))
    folder = to.with_name(f"{to.name}.parts")
    if is_merged(to) and not folder.is_dir():
        raise UsageError(
            f"{to} cannot be gone on with: the GPUs' files are not in {folder}",
            hint="name another file with -o, and merge the two",
        )
    measuring = measuring or default_measuring(gpus[0], adaptive=campaign.may_adapt)
    with _connected(address) as ray:
        real = not parse_gpu(gpus[0]).is_simulated
        placed = ["nvml"] * int(ray.cluster_resources().get("GPU", 0)) if real else gpus
        if not placed:
            hint = "start Ray where the GPUs are: `ray start --address=... --num-gpus=8`"
            raise DeviceError("the Ray cluster has no GPU", hint=hint)
        folder.mkdir(exist_ok=True)
        most = campaign.max_samples and -(-campaign.max_samples // len(placed))
        begun = [(path, path.name.split(".")) for path in folder.glob(f"*-of-{len(placed)}.*.db")]
        parts = {file: (int(n.partition("-")[0]), board) for file, (n, board, _) in begun}
        files = {part: file.read_bytes() for file, part in parts.items()}
        desk = ray.remote(num_cpus=0)(_Desk).remote(files)
        task = ray.remote(num_cpus=0, num_gpus=int(real), max_retries=1)(_measured)
        tasks = []
        for n, gpu in enumerate(placed):
            asked = {
                "step": traced,
                "campaign": replace(campaign, share=(n, len(placed)), max_samples=most),
                "measuring": measuring,
                "run": run,
                "seed": n,
            }
            tasks.append(task.remote(desk, gpu, asked))
        try:
            _wait(ray, desk, tasks, folder, progress or (lambda _tally: None))
        finally:
            for each in tasks:
                ray.cancel(each, force=True)
            ray.kill(desk)
    return merge(sorted(folder.glob("*.db")), to, force=True)


def _wait(
    ray: Any,  # noqa: ANN401 - see `_ray`
    desk: Any,  # noqa: ANN401 - see `_ray`
    tasks: Sequence[Any],
    folder: Path,
    progress: Callable[[Tally], None],
) -> None:
    """Write what tasks hand over until all have ended; refuse to wait for what does not answer."""
    tallies: dict[int, Tally] = {}
    heard_s, running = dict.fromkeys(range(len(tasks)), time.monotonic()), list(tasks)
    while running:
        ended, running = ray.wait(running, timeout=_LOOK_S)
        try:
            came = ray.get(desk.emptied.remote(), timeout=_ANSWER_S)
            for (n, board), (tally, body) in came.items():
                heard_s[n] = time.monotonic()
                tallies |= {n: tally} if tally else {}
                if body:
                    partial = folder / f"{n}-of-{len(tasks)}.{board}.partial"
                    partial.write_bytes(body)
                    partial.replace(partial.with_suffix(".db"))
            wrong = [ray.get(each, timeout=_ANSWER_S) for each in ended]
        except ray.exceptions.RayError as exc:
            why = str(exc).partition("\n")[0]
            raise DeviceError(f"Ray or a process of it is gone: {why}", hint=_GOES_ON) from exc
        for each in filter(None, wrong):
            raise each
        for each in ended:
            heard_s.pop(tasks.index(each))
        if running and time.monotonic() - min(heard_s.values()) > _SILENT_S:
            raise DeviceError(
                f"a GPU of the Ray cluster has been silent for {_SILENT_S:.0f} s: its node may be "
                "gone",
                hint=f"`ray status` shows the nodes; {_GOES_ON}",
            )
        if tallies:
            totals = [tally.total for tally in tallies.values()]
            done, gpu_s = zip(*((each.done, each.gpu_s) for each in tallies.values()), strict=True)
            total = sum(filter(None, totals)) if all(totals) else None
            doing = f"{len(running)} GPUs measure"
            progress(Tally(done=sum(done), total=total, gpu_s=max(gpu_s), doing=doing))
