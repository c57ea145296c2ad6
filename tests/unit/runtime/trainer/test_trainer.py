"""How a training process begins to mark: by its run's file, in its rank, as it has PyTorch."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from small_training import Model, files_of, plan, train
from underclock.errors import DataError
from underclock.runtime.controller.run_files import Run
from underclock.runtime.holding.run import INJECT
from underclock.runtime.policy.parts import digest_of
from underclock.runtime.trainer import marking as trainer
from underclock.runtime.trainer import page as pages
from underclock.runtime.trainer.page import Page
from underclock.runtime.undo.ownership import RUNTIME_DIR


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setenv(RUNTIME_DIR, str(tmp_path / "runs"))
    monkeypatch.delenv("UNDERCLOCK_SIMULATOR", raising=False)
    made = files_of(plan(), (("GPU-a", 0), ("GPU-b", 1)))
    yield made
    made.remove()


def _page(run: Run, rank: int) -> closing[Page]:
    return closing(Page.open(run.gpus[rank].page))


def test_a_trainer_marks_the_page_of_its_rank(run: Run) -> None:
    marker = trainer.attach(torch, str(run.path), rank=1)
    assert marker is not None
    train(Model(), 4)
    marker.detach()

    with _page(run, 0) as first, _page(run, 1) as second:
        assert (first.state, first.reached()[0]) == (pages.WAITING, 0)
        assert (second.state, second.reached()[0]) == (pages.DETACHED, 1)


def test_a_rank_without_a_gpu_trains_without_marks(run: Run) -> None:
    assert trainer.attach(torch, str(run.path), rank=2) is None


def test_a_file_of_another_version_is_refused(run: Run) -> None:
    _change(run, version=99)

    with pytest.raises(DataError, match="version 99, this underclock reads"):
        trainer.attach(torch, str(run.path))


def test_a_page_of_another_plan_is_refused_and_training_goes_on(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    _change(run, digest="00" * 32)
    marker = trainer.attach(torch, str(run.path), rank=0)
    assert marker is not None

    assert len(train(Model(), 3)) == 3

    assert "belongs to another plan" in capsys.readouterr().err


@pytest.fixture
def job() -> Iterator[Any]:
    """Make this process a job of one rank; return where ranks meet."""
    distributed: Any = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - as the trainer does
    distributed.destroy_process_group()


def test_ranks_of_a_job_hold_one_plan(
    run: Run, job: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trainer, "_held", 0)
    marker = trainer.attach(torch, str(run.path), rank=0)
    train(Model(), 3)
    assert marker is not None
    marker.detach()
    assert job.get("underclock/plan/1").decode() == digest_of(plan())
    assert not capsys.readouterr().err

    job.set("underclock/plan/2", "00" * 32)  # a rank on another machine was there first
    assert trainer.attach(torch, str(run.path), rank=1) is not None
    assert len(train(Model(), 3)) == 3
    assert "another plan than ranks of the same job" in capsys.readouterr().err


def test_a_page_that_is_gone_does_not_end_training(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = trainer.attach(torch, str(run.path), rank=0)
    Path(run.gpus[0].page).unlink()

    assert len(train(Model(), 3)) == 3

    assert marker is not None
    assert "training goes on without marks" in capsys.readouterr().err


@pytest.mark.parametrize(("mine", "ok"), [("GPU-a", True), ("A", True), ("GPU-b", False)])
def test_a_process_on_another_gpu_is_refused(run: Run, mine: str, *, ok: bool) -> None:
    class Cuda:
        @staticmethod
        def get_device_properties(_device: object) -> Any:
            return type("Properties", (), {"uuid": mine})

    fake = type("Torch", (), {"cuda": Cuda})
    check = getattr(trainer, "_check_gpu")  # noqa: B009 - the seam to a GPU that is not here

    if ok:
        check(fake, run.gpus[0].uuid, "cuda:0")
    else:
        with pytest.raises(DataError, match="this process trains on GPU-GPU-b"):
            check(fake, run.gpus[0].uuid, "cuda:0")


def _change(run: Run, **fields: object) -> None:
    body = json.loads(run.path.read_bytes())
    run.path.write_text(json.dumps({**body, **fields}))


def _python(code: str, folder: Path, **environment: str) -> str:
    path = ":".join([str(INJECT), str(folder), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": path, **environment},
    )
    return ended.stdout + ended.stderr


@pytest.fixture
def fake_torch(tmp_path: Path) -> Path:
    """A PyTorch that loads at once, and says who asks it for hooks."""
    package = tmp_path / "path" / "torch"
    (package / "optim").mkdir(parents=True)
    (package / "__init__.py").write_text("class _C: pass\n")
    (package / "optim" / "__init__.py").write_text("")
    (package / "optim" / "optimizer.py").write_text(
        "import types\n\n"
        "def register_optimizer_step_post_hook(hook):\n"
        "    print('hooked')\n"
        "    return types.SimpleNamespace(remove=print)\n"
    )
    return package.parent


def test_it_attaches_when_pytorch_is_imported_and_not_before(run: Run, fake_torch: Path) -> None:
    told = {"UNDERCLOCK_RUN": str(run.path)}

    assert "hooked" in _python("import torch; print(torch.__spec__.loader)", fake_torch, **told)
    assert "SourceFileLoader" in _python(
        "import torch; print(torch.__loader__)", fake_torch, **told
    )
    assert _python("import json", fake_torch, **told) == ""
    assert _python("import torch", fake_torch) == ""


def test_another_sitecustomize_is_run_as_well(run: Run, fake_torch: Path) -> None:
    (fake_torch / "sitecustomize.py").write_text("print('theirs', __name__)")

    output = _python("import torch", fake_torch, UNDERCLOCK_RUN=str(run.path))

    assert output.split() == ["theirs", "sitecustomize", "hooked"]


def test_a_trainer_without_the_package_finds_it_beside_the_hook(run: Run, fake_torch: Path) -> None:
    """The training environment may be another than ours."""
    code = "import torch, sys; print('underclock' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-S", "-c", "import sitecustomize\n" + code],
        capture_output=True,
        text=True,
        check=True,
        env={
            "PYTHONPATH": f"{INJECT}:{fake_torch}",
            "UNDERCLOCK_RUN": str(run.path),
        },
    )

    assert ended.stdout.split() == ["hooked", "True"]


def test_a_run_file_that_is_gone_does_not_end_the_process(fake_torch: Path) -> None:
    output = _python("import torch; print('goes on')", fake_torch, UNDERCLOCK_RUN="/no/such/file")

    assert "goes on" in output
    assert "training goes on without marks" in output


@pytest.mark.parametrize("fails", [False, True])
def test_who_ends_by_an_error_or_ctrl_c_waits_for_nothing_that_is_queued(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    class Queued:
        done = ""

        def synchronise(self) -> None:
            self.done += "waited, "

        def close(self) -> None:
            self.done += "closed"

    if fails:
        monkeypatch.setattr(sys, "last_value", KeyboardInterrupt(), raising=False)
    else:
        monkeypatch.delattr(sys, "last_value", raising=False)
    stream = Queued()
    trainer._wait_for(stream)  # noqa: SLF001 - it runs as the process ends

    assert stream.done == ("closed" if fails else "waited, closed")
