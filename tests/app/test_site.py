"""What ships for a machine's operator: units, and Slurm's scripts on simulated GPUs."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import SIMULATOR, nvml_session
from underclock.hw.settable import SettableNvmlGpu, Setting
from underclock.runtime.undo.armed import Armed
from underclock.runtime.undo.ownership import RUNTIME_DIR
from underclock.testing import served_gpus

SITE = Path(__file__).parents[2] / "src/underclock/site"
UNITS = sorted(SITE.glob("*.service"))
SCRIPTS = sorted(SITE.glob("*.sh"))
SHELLCHECK, SYSTEMD_ANALYZE = map(shutil.which, ("shellcheck", "systemd-analyze"))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with the scripts set up for two simulated GPUs, one of which a job locked."""
    (tmp_path / "run").mkdir(mode=0o700)
    with served_gpus("rtx3080ti", tmp_path / "s", count=2):
        monkeypatch.setenv(SIMULATOR, str(tmp_path / "s"))
        with nvml_session():
            uuids = [NvmlGpu(index).uuid() for index in (0, 1)]
            one = Armed(SettableNvmlGpu(uuids[1]), tmp_path / "run", share_lock=lambda _: None)
            one.set(Setting.CORE, 1200)
            one.lock.release()  # as when Slurm killed its processes
            programs = {
                "nvidia-smi": f"set -- $2 {' '.join(uuids)}; shift $(($1 + 1)) && echo ${{1:?}}",
                "underclock": f"export {SIMULATOR}={tmp_path}/s {RUNTIME_DIR}={tmp_path}/run\n"
                f'exec {sys.executable} -m underclock "$@"',
            }
            for name, text in programs.items():
                (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
                (tmp_path / name).chmod(0o755)
            for script in SCRIPTS:
                text = script.read_text().replace("export PATH=", f"export PATH={tmp_path}:")
                text = text.replace("/opt/underclock/bin", str(tmp_path))
                (tmp_path / script.name).write_text(text.replace("/run/", f"{tmp_path}/run/"))
            yield tmp_path


def _run(folder: Path, script: str, **slurm: str) -> subprocess.CompletedProcess[str]:
    """Run a script as slurmd does: with its own variables and hardly anything else."""
    environment = {"SLURM_JOB_ID": "7", **slurm}
    command = ["/bin/sh", str(folder / script)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_job_owns_its_gpus_while_it_runs_and_leaves_nothing_set(slurm: Path) -> None:
    owners = slurm / "run/underclock-owners"
    of_job = {"SLURM_JOB_UID": "1234", "SLURM_JOB_GPUS": "0,1"}
    uuids = [NvmlGpu(index).uuid() for index in (0, 1)]

    began = _run(slurm, "slurm-prolog.sh", **of_job)

    assert (began.returncode, began.stderr) == (0, "")
    assert "core given back to the driver" in began.stdout  # what a job before it left
    assert {each.name: each.read_text() for each in owners.iterdir()} == dict.fromkeys(
        uuids, "1234\n"
    )
    assert all(each.stat().st_mode & 0o777 == 0o644 for each in owners.iterdir())
    ended = _run(slurm, "slurm-epilog.sh", **of_job)
    assert (ended.returncode, ended.stdout) == (0, "nothing was left behind\n")
    assert not list(owners.iterdir())


@pytest.mark.parametrize(
    ("of_job", "said"),
    [
        ({"SLURM_JOB_GPUS": "0"}, "no SLURM_JOB_UID"),
        ({"SLURM_JOB_UID": "0; id", "SLURM_JOB_GPUS": "0"}, "no SLURM_JOB_UID"),
        ({"SLURM_JOB_UID": "1", "SLURM_JOB_GPUS": "0,../x"}, "SLURM_JOB_GPUS names ../x"),
        ({"SLURM_JOB_UID": "1", "SLURM_JOB_GPUS": "5"}, ""),
    ],
)
def test_a_prolog_that_cannot_say_whose_a_gpu_is_fails(
    of_job: dict[str, str], said: str, slurm: Path
) -> None:
    (slurm / "underclock").write_text("#!/bin/sh\n")

    began = _run(slurm, "slurm-prolog.sh", **of_job)

    assert began.returncode != 0
    assert said in began.stderr


def test_a_job_without_gpus_is_nothing_to_the_epilog(slurm: Path) -> None:
    (slurm / "underclock").write_text("#!/bin/sh\necho $#:$1:$2:${SLURM_JOB_ID:-none}\n")

    ended = _run(slurm, "slurm-epilog.sh", SLURM_JOB_GPUS="", UNDERCLOCK_READ_ONLY="1")

    assert (ended.returncode, ended.stdout) == (0, "2:restore:--all:none\n")


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
def test_the_scripts_have_no_finding() -> None:
    subprocess.run([str(SHELLCHECK), *SCRIPTS], check=True)


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_exposed_no_more_than_it_says(unit: Path) -> None:
    said = re.search(r"calls its exposure (\d\.\d), OK", unit.read_text())
    assert said is not None
    limit = str(round(10 * float(said[1])))

    judged = subprocess.run(
        [str(SYSTEMD_ANALYZE), "security", "--offline=true", f"--threshold={limit}", unit],
        capture_output=True,
        text=True,
        check=False,
    )

    assert judged.returncode == 0, judged.stdout[-300:]
