"""measure --ray and plan --ray: campaigns on many GPUs, and grids of plans, on actors of Ray.

An actor has its GPU, its lease on the clocks and its own time; the driver has the one policy, and
writes a file for each. What an actor has not handed over when it dies is measured by another.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from underclock.app.backends import default_measuring, open_measurer
from underclock.app.measuring import policy_of, surveyed
from underclock.campaign.progress import Tally
from underclock.campaign.recording import Outbox, Recorder
from underclock.campaign.survey import Campaign
from underclock.campaign.together import Answered, Died, Joined, Refused, TogetherRun, Told
from underclock.core.design.wanted import Wanted
from underclock.errors import DeviceError, NotSupportedError, UnderclockError, UsageError
from underclock.hw.base import Capability
from underclock.hw.gpu_names import parse_gpu
from underclock.records import MeasurementSettings, SampleSet, Step
from underclock.store import check_output, is_merged, merge
from underclock.tracing.source import StepFile, StepFunction, as_step

_R = TypeVar("_R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A GPU that an actor measures.

    Attributes:
        gpu: ``sim:NAME``, or ``nvml`` for one that Ray gives it.
        node: Ray's name of the host; empty for any.
        seed: Of a simulated GPU's noise.
    """

    gpu: str
    node: str = ""
    seed: int = 0


class _Worker:
    """A GPU that is open in a process of Ray's, which takes the windows that it is given."""

    def __init__(
        self,
        name: str,
        placed: Placed,
        step: Step,
        campaign: Campaign,
        measuring: MeasurementSettings,
        run: StepFile | None,
    ) -> None:
        self._name, self._placed, self._step = name, placed, step
        self._campaign, self._measuring, self._run = campaign, measuring, run
        self._stack = ExitStack()
        self._warmed = False

    def join(self) -> Told:
        """Open the GPU."""
        try:
            return self._join()
        except UnderclockError as exc:
            return Refused(worker=self._name, error=exc)

    def _join(self) -> Joined:
        gpu, seed = self._placed.gpu, self._placed.seed
        if not parse_gpu(gpu).is_simulated:
            gpu = f"nvml:{_ray().get_gpu_ids()[0]}"
        opened = open_measurer(
            gpu, measuring=self._measuring, seed=seed, step=self._step, run=self._run, anew=True
        )
        self._measurer = measurer = self._stack.enter_context(opened)
        if self._campaign.steers(measurer):
            raise NotSupportedError(
                "clocks are steered here, one mix after the other, which many GPUs do not share",
                hint="with root clocks are held; or measure each GPU by itself, then merge",
            )
        offered = [clocks for clocks in measurer.settings() if not clocks.is_auto]
        if offered and Capability.LOCK in measurer.capabilities:
            # A worker that was killed here may have left clocks held: the end of a lease frees all.
            with measurer.hold(offered[0]):
                pass
        header, points = surveyed(
            measurer,
            measurer.step or self._step,
            self._campaign,
            gpu=gpu,
            measuring=self._measuring,
            seed=seed,
        )
        self._campaign.check_goal(measurer, header)
        self._outbox = Outbox(header)
        self._recorder = Recorder(measurer, self._outbox)
        return Joined(
            worker=self._name,
            header=header,
            points=points,
            capabilities=measurer.capabilities,
            process=os.getpid(),
        )

    def take(self, wanted: Sequence[Wanted]) -> Told:
        """Take windows at the clocks of each, in turn."""
        try:
            for one in wanted:
                if one.warm or not self._warmed:
                    header = self._outbox.header
                    self._measurer.warm(header.launches or header.kernels)
                    self._warmed = True
                with self._measurer.hold(one.asked):
                    self._recorder.take(one)
            self._outbox.note(self._measurer.notes())
        except UnderclockError as exc:
            return Refused(worker=self._name, error=exc)
        windows, notes = self._outbox.emptied()
        return Answered(worker=self._name, windows=windows, notes=notes)

    def close(self) -> None:
        """Give the GPU back."""
        self._stack.close()


def _ray() -> Any:  # noqa: ANN401 - Ray is not needed, and its types neither
    """Return Ray.

    Raises:
        NotSupportedError: It is not installed.
    """
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
def connected(address: str) -> Iterator[Any]:
    """Connect to a Ray cluster, or start one here.

    Args:
        address: Of the cluster; empty: the one that RAY_ADDRESS or this host has, or else a new
            one on this host.

    Raises:
        NotSupportedError: Ray is not installed.
        DeviceError: It cannot be reached.
    """
    ray = _ray()
    begins = not ray.is_initialized()
    if begins:
        try:
            ray.init(address=address or None, log_to_driver=False, include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as exc:
            raise DeviceError(
                f"no Ray answers at {address or 'this host'}: {exc}",
                hint="`ray start --head` starts one; --ray without an address starts its own",
            ) from exc
    try:
        yield ray
    finally:
        if begins:
            ray.shutdown()


class RayWorkers:
    """Actors of Ray, each with a GPU.

    Attributes:
        actors: Those that run, by the name of their worker.
        processes: Of those that have joined.
    """

    def __init__(self, ray: Any, placed: dict[str, Placed], *given: object) -> None:  # noqa: ANN401 - see `_ray`
        self._ray, self._placed, self._given = ray, placed, given
        self.actors: dict[str, Any] = {}
        self.processes: dict[str, int] = {}
        self._asked: dict[Any, str] = {}

    def start(self, worker: str) -> None:
        """Begin to open a worker's GPU."""
        placed = self._placed[worker]
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0}
        if placed.node:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(placed.node, soft=False)
            options["num_gpus"] = 1
        actor = self._ray.remote(_Worker).options(**options).remote(worker, placed, *self._given)
        self.actors[worker] = actor
        self._asked[actor.join.remote()] = worker

    def take(self, worker: str, wanted: Sequence[Wanted]) -> None:
        """Begin to take windows."""
        self._asked[self.actors[worker].take.remote(list(wanted))] = worker

    def told(self) -> Told:
        """Wait until something happens."""
        ready, _ = self._ray.wait(list(self._asked), num_returns=1)
        worker = self._asked.pop(ready[0])
        try:
            told: Told = self._ray.get(ready[0])
        except self._ray.exceptions.RayActorError as exc:
            del self.actors[worker]
            self.processes.pop(worker, None)
            return Died(worker=worker, why=str(exc).partition("\n")[0])
        if isinstance(told, Joined):
            self.processes[worker] = told.process
        return told

    def close(self) -> None:
        """Give the GPUs back and end all actors."""
        ends = [actor.close.remote() for actor in self.actors.values()]
        self._ray.wait(ends, num_returns=max(1, len(ends)), timeout=30.0) if ends else None
        for actor in self.actors.values():
            self._ray.kill(actor)


def measure_together(
    step: Step | str | Path | None,
    *,
    gpus: Sequence[str],
    to: str | Path,
    address: str = "",
    campaign: Campaign | None = None,
    measuring: MeasurementSettings | None = None,
    seed: int = 0,
    progress: Callable[[Tally], None] | None = None,
    run: StepFunction | StepFile | None = None,
    told: Callable[[RayWorkers], None] | None = None,
) -> tuple[SampleSet, ...]:
    """Measure a step's kernels on many GPUs as one campaign, each in an actor of Ray.

    Each worker's file lies in a folder beside the merged one, from which the same call goes on.

    Args:
        step: What to measure: a step or its file.
        gpus: A simulated GPU for each worker; or ``nvml`` alone, for every GPU of the cluster.
        to: Merged samples file, made anew of all workers' files.
        address: Of the Ray cluster; empty for one that is found or started.
        campaign: Which clocks, how often; its time limit is of each GPU, its samples are of all.
        measuring: How long to wait and measure.
        seed: Of the first simulated GPU's noise; others have the next ones.
        progress: Told of every answer.
        run: Where the step's function may be found.
        told: Given the workers before they start.

    Returns:
        The samples of each board.

    Raises:
        NotSupportedError: Ray is not installed, or clocks are steered.
        UsageError: A table, a step that only runs whole, or a file of another campaign.
        DataError: Workers have unlike GPUs, drivers or power limits.
        DeviceError: Ray cannot be reached, or no worker is left.
    """
    to, traced = Path(to), as_step(step)
    if traced is None or traced.obstacle:
        raise UsageError(
            "many GPUs share the kernels of a step; here is no step, or one that only runs whole",
            hint="`underclock trace` makes a step; what runs whole is measured without --ray",
        )
    names = [parse_gpu(gpu) for gpu in gpus]
    for name in names:
        name.need(Capability.RUN)
    campaign = campaign or Campaign()
    measuring = measuring or default_measuring(gpus[0], adaptive=campaign.may_adapt)
    check_output(to, force=is_merged(to), over_samples=is_merged(to))
    folder = to.with_name(f"{to.name}.parts")
    if is_merged(to) and not folder.is_dir():
        raise UsageError(
            f"{to} cannot be gone on with: the workers' files are not in {folder}",
            hint="name another file with -o, and merge the two",
        )
    folder.mkdir(exist_ok=True)
    with connected(address) as ray:
        placed = _placed(ray, gpus, seed)
        workers = RayWorkers(ray, placed, traced, campaign, measuring, run)
        if told is not None:
            told(workers)
        try:
            paths = TogetherRun(
                workers,
                list(placed),
                folder,
                campaign,
                lambda gathered, points: policy_of(gathered, points, campaign, seed, len(placed)),
                virtual=names[0].is_simulated,
                progress=progress or (lambda _tally: None),
            ).run()
        finally:
            workers.close()
    left = [path for path in sorted(folder.glob("*.db")) if path not in paths]
    return merge([*paths, *left], to, force=True)


def gpus_of(text: str) -> tuple[str, ...]:
    """Return the GPUs of workers: ``sim:rtx3080ti*8`` is eight alike, and commas part others.

    Raises:
        UsageError: How many there are is no number.
    """
    gpus: list[str] = []
    for part in text.split(","):
        gpu, mark, count = part.rpartition("*")
        if mark and not (count.isascii() and count.isdecimal() and int(count)):
            raise UsageError(f"cannot read {part!r} as GPUs", hint="write sim:rtx3080ti*8")
        gpus += [gpu] * int(count) if mark else [part]
    return tuple(gpus)


def shared_out(
    work: Callable[..., _R],
    cells: Sequence[tuple[object, ...]],
    asked: Mapping[str, object],
    address: str | None,
) -> Iterator[_R]:
    """Yield what every cell of a grid gives, in order; on Ray's processes where one is named.

    Args:
        work: Called with a cell and by name with what is asked.
        address: As of `connected`; ``None``: here, one after the other.

    Raises:
        UnderclockError: As the work, or Ray.
    """
    if address is None:
        for cell in cells:
            yield work(*cell, **asked)
        return

    def told(*cell: object) -> object:
        try:
            return work(*cell, **asked)
        except UnderclockError as exc:  # as a value, for Ray would wrap it
            return exc

    with connected(address) as ray:
        remote = ray.remote(told)
        for made in [remote.remote(*cell) for cell in cells]:
            found = ray.get(made)
            if isinstance(found, UnderclockError):
                raise found
            yield found


def _placed(ray: Any, gpus: Sequence[str], seed: int) -> dict[str, Placed]:  # noqa: ANN401 - see `_ray`
    """Return the workers by name, each with its GPU.

    Raises:
        DeviceError: The cluster has no GPU.
    """
    if parse_gpu(gpus[0]).is_simulated:
        return {str(n): Placed(gpu=gpu, seed=seed + n) for n, gpu in enumerate(gpus)}
    found = {
        f"{node['NodeManagerHostname']}-{n}": Placed(gpu="nvml", node=node["NodeID"])
        for node in ray.nodes()
        if node["Alive"]
        for n in range(int(node["Resources"].get("GPU", 0)))
    }
    if not found:
        raise DeviceError(
            "the Ray cluster has no GPU",
            hint="start Ray where the GPUs are: `ray start --address=... --num-gpus=8`",
        )
    return found
