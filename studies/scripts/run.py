"""Public training scripts traced as they are, on the GPUs of this machine; nothing is set.

    UNDERCLOCK_READ_ONLY=1 python studies/scripts/run.py CHECKOUTS RESULTS.json [NAME ...]

CHECKOUTS is a folder that holds each repository under its name, as `corpus.toml` lists them. A name
may be given several times, to try a script again. The page is docs/evidence/h200/scripts.md.
"""

import json
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from underclock.records import Step
from underclock.store import read_document

_CORPUS = Path(__file__).with_name("corpus.toml")
_LONGEST_S = 200.0
_LINES = 2  # of what a script that is not traced is told


def traced(name: str, script: dict[str, Any], checkouts: Path, folder: Path) -> dict[str, object]:
    """Trace one script; return what came out."""
    file = (folder / f"{name}.json").absolute()
    where = checkouts / script["repository"].rpartition("/")[2] / script.get("folder", "")
    ours = [sys.executable, "-m", "underclock", "trace", "--force", "-o", str(file), "--"]
    begun_s = perf_counter()
    try:
        done = subprocess.run(
            [*ours, *shlex.split(script["command"])],
            cwd=where,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
        )
        code, said = done.returncode, done.stderr.strip().splitlines()[-_LINES:]
    except subprocess.TimeoutExpired:
        code, said = -1, [f"no end in {_LONGEST_S:.0f} s"]
    found: dict[str, object] = {"name": name, "code": code, "took_s": perf_counter() - begun_s}
    own = file if script["gpus"] == 1 else file.with_name(f"{file.stem}.rank0.json")
    if code or not own.is_file():
        return found | {"said": said}
    step = read_document(own, Step)
    return found | {
        "kernels": len(step.kernels),
        "launches": len(step.order),
        "captured": not step.obstacle,
        "obstacle": step.obstacle,
        "left": _left(script["command"]),
    }


def _left(command: str) -> int:
    """Return how many processes of a command there still are."""
    script = next(word for word in command.split() if word.endswith(".py")).encode()
    left = 0
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            left += script in place.read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
    return left


def main(checkouts: Path, results: Path, names: list[str]) -> None:
    """Trace scripts one after the other, and write what came out after each."""
    corpus = tomllib.loads(_CORPUS.read_text())
    every: list[dict[str, object]] = []
    folder = results.parent / "steps"
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or corpus:
        every.append(traced(name, corpus[name], checkouts, folder))
        print(json.dumps(every[-1]), flush=True)
        results.write_bytes(msgspec.json.format(msgspec.json.encode(every)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
