"""How a training process begins to mark: what it reads, and who wrote that.

Standard library only: this is loaded into the training process.
"""

from __future__ import annotations

import contextlib
import os
import sys

from underclock.errors import DataError, DeviceError, NotSupportedError, UsageError
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.marks import Marker, say, sentence_of
from underclock.runtime.trainer.page import Page
from underclock.runtime.trainer.streams import CudaStream, HostStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from underclock.runtime.trainer.streams import MarkStream

RUN = "UNDERCLOCK_RUN"
"""Names the file that says what is to be marked, and where."""
_SIMULATOR = "UNDERCLOCK_SIMULATOR"
_RANK = "LOCAL_RANK"
_held = 0  # runs that this process has marked


def attach(torch: Any, path: str, rank: int | None = None) -> Marker | None:
    """Begin to mark the steps of this process, as its run's file says.

    Args:
        rank: Of this process on its machine; by default what its launcher says.

    Returns:
        What marks; ``None`` where this rank has no GPU in the run.

    Raises:
        DataError: The file is another version's or of another plan than its page.
        OSError: It cannot be read.
    """
    import json  # noqa: PLC0415 - PyTorch has it loaded

    with open(path, "rb") as file:  # noqa: PTH123 - pathlib is another 3 ms
        run = json.load(file)
    if run.get("version") != pages.VERSION:
        raise DataError(
            f"{path} is of version {run.get('version')}, this underclock reads {pages.VERSION}",
            hint="trainer and controller need the same underclock: install one version, start anew",
        )
    rank = int(os.environ.get(_RANK, "0")) if rank is None else rank
    if not 0 <= rank < len(run["gpus"]):
        return None
    gpu = run["gpus"][rank]

    def open_page() -> Page:
        page = Page.open(gpu["page"])
        if page.digest.hex() != run["digest"]:
            raise DataError(
                f"{gpu['page']} belongs to another plan than this process was started with",
                hint="ranks of one job need one plan: start them by one `underclock run`",
            )
        if not page.claim():
            page.close()
            raise UsageError(
                f"another process marks the steps of GPU {gpu['index']} already, and one alone may",
                hint="give each trainer its own GPU, by its LOCAL_RANK",
            )
        try:
            _check_world(torch, run["world"], run["first"] + rank)
            _check_same_job(torch, run["digest"])
        except DataError as exc:
            page.tell(pages.REFUSED, sentence_of(exc))  # who controls ends all ranks' clocks
            page.close()
            raise
        return page

    def open_stream(page: Page, optimizer: Any) -> MarkStream:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        if not parameters:
            raise DataError("the optimiser has no parameters, so nothing says where it trains")
        return _stream(torch, page, gpu, parameters[0].device, waits=bool(run["world"]))

    places = [tuple(place) for place in gpu["places"]]
    sites = {tuple(site[:3]): site[3] for site in gpu["sites"]} if gpu["step"] else None
    marker = Marker(
        places, open_page, open_stream, run["schedule"], discovers=run["learns"], sites=sites
    )
    marker.attach(torch)
    return marker


def _check_world(torch: Any, world: int, planned: int) -> None:
    """Refuse a job of other ranks than the plan's; a plan for one GPU, of world 0, takes any."""
    distributed = torch.distributed
    is_there = distributed.is_available() and distributed.is_initialized()
    size, rank = (distributed.get_world_size(), distributed.get_rank()) if is_there else (1, 0)
    if world and size != world:
        raise DataError(
            f"this job has a world size of {size}, and the plan is for {world} ranks",
            hint="plan the job as it runs, or start as many ranks as planned",
        )
    if world and rank != planned:
        raise DataError(
            f"this is rank {rank} of the job, and its GPU has the clocks of rank {planned}",
            hint="say on each machine which rank is its first: underclock run --first-rank",
        )


def _check_same_job(torch: Any, digest: str) -> None:
    """Refuse another plan than the job's other ranks hold, on whatever machine they are.

    Ranks meet in the store by which they found one another: without waiting, and nothing is sent
    through collectives. Of several runs in a row each is looked at.
    """
    global _held  # noqa: PLW0603 - of this process, as its ranks are
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return
    _held += 1
    store = distributed.distributed_c10d._get_default_store()
    first = bytes(store.compare_set(f"underclock/plan/{_held}", "", digest)).decode()
    if first != digest:
        raise DataError(
            f"rank {distributed.get_rank()} was started with another plan than ranks of the same "
            "job",
            hint="give `underclock run` the same plan on every machine",
        )


def _stream(torch: Any, page: Page, gpu: dict[str, Any], device: Any, *, waits: bool) -> MarkStream:
    """Return what writes marks where this process trains.

    Where ranks hand one another what a simulated GPU computes, each `waits` for its own.
    """
    if os.environ.get(_SIMULATOR) and gpu["step"]:
        import atexit  # noqa: PLC0415

        from underclock.runtime.trainer.streams import ServedStream  # noqa: PLC0415

        stream = ServedStream.connect(
            os.environ[_SIMULATOR],
            gpu=gpu["index"],
            step=gpu["step"],
            page=page.path,
            marks=page.marks,
            waits=waits,
        )
        atexit.register(_wait_for, stream)  # as a program waits for its GPU before it ends
        return stream
    if device.type == "cpu":
        return HostStream(page)
    if device.type != "cuda":
        raise NotSupportedError(f"marks need an NVIDIA GPU, and this trains on {device.type}")
    _check_gpu(torch, gpu["uuid"], device)
    index = torch.cuda.current_device() if device.index is None else device.index

    def current() -> int:
        return int(torch._C._cuda_getCurrentRawStream(index))

    return CudaStream(page, current)


def _wait_for(stream: Any) -> None:
    # At an error, or Ctrl-C, what is queued is not waited for.
    if getattr(sys, "last_value", None) is None:
        with contextlib.suppress(OSError, DeviceError, UsageError):
            stream.synchronise()
    stream.close()


def _check_gpu(torch: Any, uuid: str, device: Any) -> None:
    """Refuse to steer one GPU by the marks of another."""
    mine = str(torch.cuda.get_device_properties(device).uuid)
    if uuid.removeprefix("GPU-").lower() != mine.removeprefix("GPU-").lower():
        raise DataError(
            f"this process trains on GPU-{mine}, and the run has {uuid} for it",
            hint="name the GPUs in the order of the local ranks: --gpu nvml:0 --gpu nvml:1",
        )


def attach_when_imported() -> None:
    """Attach as soon as this process has loaded PyTorch; do nothing where nothing was asked."""
    path = os.environ.get(RUN)

    def attach_or_say(torch: Any) -> None:
        try:
            attach(torch, str(path))
        except Exception as exc:  # noqa: BLE001 - training must go on
            say(f"training goes on without marks: {sentence_of(exc)}")

    if path:
        when_imported(attach_or_say)


def when_imported(then: Callable[[Any], None]) -> None:
    """Hand PyTorch to a function once, as soon as this process has loaded it."""
    if "torch" in sys.modules:
        then(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, _Finder(then))


class _Finder:
    def __init__(self, then: Callable[[Any], None]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Let the other finders find PyTorch, and note when it is loaded; looking loads none."""
        if name != "torch":
            return None
        finders = (getattr(each, "find_spec", None) for each in sys.meta_path if each is not self)
        specs = (find(name, path, target) for find in finders if find is not None)
        spec = next(filter(None, specs), None)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            load = loader.exec_module

            def load_and_attach(module: Any) -> None:
                del loader.exec_module  # no trace of us is needed
                load(module)
                if self in sys.meta_path:  # else another spec of it was loaded before
                    sys.meta_path.remove(self)
                    self._then(module)

            loader.exec_module = load_and_attach
        return spec
