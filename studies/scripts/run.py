"""Public training scripts traced as they are, on the GPUs of this machine; nothing is set.

    UNDERCLOCK_READ_ONLY=1 python studies/scripts/run.py CHECKOUTS RESULTS.json --gpus 1 [NAME ...]

CHECKOUTS holds each repository under its name, as `corpus.toml` lists them. Scripts run in the
order of that file, or as named; a name may be given several times, to try a script again. What
RESULTS.json has already is not tried again. A machine without a GPU tries what can run on a CPU.
The page is docs/evidence/h200/scripts.md.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from underclock.hw.base import SystemClock
from underclock.records import Step
from underclock.store import read_document

_CORPUS = Path(__file__).with_name("corpus.toml")
_LINES = 3  # of what a script that is not traced is told
_ENDED = 124  # exit code of `timeout`
_MARK = "UNDERCLOCK_CORPUS"  # in the environment of all that a script starts


def tried(script: dict[str, Any], where: Path, file: Path, *, cpu: bool) -> dict[str, object]:
    """Trace one script; return what came out."""
    mark = str(file)
    words = shlex.split(script["command"]) + shlex.split(script.get("cpu", "") if cpu else "")
    ours = [sys.executable, "-m", "underclock", "trace", "--force", "-o", mark]
    ours += ["--assume"] if cpu else []
    # A checkout stands for its package, which some scripts import.
    paths = os.pathsep.join(filter(None, [str(where.absolute()), os.environ.get("PYTHONPATH")]))
    begun_s = perf_counter()
    done = subprocess.run(
        ["/usr/bin/timeout", "-k", "5", str(script.get("longest_s", 100)), *ours, "--", *words],
        cwd=where / script.get("folder", ""),
        env=os.environ | {_MARK: mark, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    found: dict[str, object] = {"code": done.returncode, "took_s": perf_counter() - begun_s}
    SystemClock().sleep_s(0.5)  # a process that was killed is listed until it is gone
    left = _left(mark)
    found |= {"left": len(left), "on_gpu": _on_gpu(), "said": _said(done.stderr)}
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    ranks = [file] if file.is_file() else sorted(file.parent.glob(f"{file.stem}.rank*[0-9].json"))
    if done.returncode or not ranks:
        return found | {"came_to": "no end" if done.returncode == _ENDED else "refused"}
    step = read_document(ranks[0], Step)
    how = "assumed" if step.is_assumed else "profiled" if step.obstacle else "traced whole"
    kernels, launches = len(step.kernels), len(step.order)
    found |= {"came_to": how, "ranks": len(ranks), "kernels": kernels, "launches": launches}
    return found | {"obstacle": step.obstacle, "warnings": step.warnings}


def _said(stderr: str) -> list[str]:
    """Return the last lines that are ours: an error, its hint, and warnings."""
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    ours = [n for n, line in enumerate(lines) if line.startswith("underclock: ")]
    return [line[:500] for line in lines[ours[-1] if ours else -_LINES :][:_LINES]]


def _left(mark: str) -> list[int]:
    """Return the processes that a script started, and that there still are."""
    entry = f"{_MARK}={mark}".encode()
    left = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            if entry in place.read_bytes().split(b"\0"):
                left.append(int(place.parent.name))
        except OSError:  # it has ended
            continue
    return left


def _on_gpu() -> int | None:
    """Return how many processes compute on GPUs; ``None`` where there is none."""
    try:
        words = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
        return len(subprocess.run(words, capture_output=True, check=True).stdout.split())
    except (OSError, subprocess.CalledProcessError):
        return None


def main() -> None:
    """Trace scripts one after the other, and write what came out after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--gpus", type=int, default=1, help="how many the scripts need")
    parser.add_argument("--until-s", type=float, default=1e9, help="none begins later than this")
    given = parser.parse_intermixed_args()
    corpus = tomllib.loads(_CORPUS.read_text())
    every = json.loads(given.results.read_bytes()) if given.results.is_file() else []
    before = {each["name"] for each in every}
    cpu, begun_s = _on_gpu() is None, perf_counter()
    folder = (given.results.parent / "steps").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    all_names = [
        n
        for n in corpus
        if corpus[n]["gpus"] == given.gpus and not (cpu and "cpu" not in corpus[n])
    ]
    for name in given.names or all_names:
        if name in before or perf_counter() - begun_s > given.until_s:
            continue
        where = given.checkouts / corpus[name]["repository"].rpartition("/")[2]
        came = tried(corpus[name], where, folder / f"{name}.{len(every)}.json", cpu=cpu)
        every.append({"name": name, **came})
        print(json.dumps(every[-1]), flush=True)
        given.results.write_bytes(msgspec.json.format(msgspec.json.encode(every)))


if __name__ == "__main__":
    main()
