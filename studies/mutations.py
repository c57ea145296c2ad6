"""Files that were edited, cut or garbled, given to the commands that read them.

    python studies/mutations.py [NUMBER [SEED]]

Each input is a good file with one change: a number another one, a list shorter, a key gone, bytes
flipped. The command that reads it runs in this process. What may come of it is a sentence and an
exit code, or an answer. Counted are:

* traceback: anything but an answer or a sentence;
* hang: more than a minute of CPU time;
* said other: the command succeeds, its answer is another than that of the good file, and what was
  changed is a result that the same file states a second time (`STATED`): it contradicts itself. A
  change of data, such as the energy of a row, has another answer, and rightly.

The counts go to docs/evidence/mutations.md where 20 000 were made.
"""

import contextlib
import io
import json
import math
import os
import platform
import random
import re
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from underclock import Campaign, Goal, measure, plan, score, trace, validate
from underclock.app import main
from underclock.gpus.models import encode, gpu_model
from underclock.hw.measurer import BRISK
from underclock.records.latencies import Domain, LatencyTable, Switch
from underclock.stages.switching import Switching
from underclock.store import write_document
from underclock.store.rows import checksum

_PAGE = Path(__file__).resolve().parent.parent / "docs" / "evidence" / "mutations.md"
_WHOLE = 20_000
_LIMIT_S = 60.0
_SAME = 1e-4  # a number changed by less is shown as before
_COSTS = (
    r"arms\.\d+\.(time|energy)_change|arms\.\d+\.(time_s|energy_j)"
    r"|frontier\.\d+\.(time|energy)_change"
)
"""Results that a file states twice: paths of a document, by its file."""
STATED = {
    "table.plan.json": _COSTS,
    "plan.json": rf"{_COSTS}|schedule\.switches|runs\.\d+\.count|order\.\d+",
    "validation.json": r"(time|energy)_change\.(mean|best|worst)|verdict|repeats"
    r"|(auto|plan)_(time_s|energy_j)",
    "score.json": r"(time|energy)_change|time_s|energy_j|arms\.\d+\.(time|energy)_change",
    "step.json": r"kernels\.\d+\.count|order\.\d+",
    "samples.db": r"kernels\.\d+\.count|order\.\d+",
}
_TABLE = """gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,count,temperature_c,throttle_reasons
G,a,,,1.00,100,2,60,0
G,a,,,1.01,101,2,61,0
G,a,900,,1.05,80,2,55,0
G,a,900,,1.04,81,2,55,0
G,a,1200,,1.01,92,2,58,0
G,b,,,2.00,300,1,70,4
G,b,,,2.02,303,1,70,4
G,b,900,,2.02,250,1,60,0
G,b,900,,2.03,251,1,60,0
G,b,1200,,2.01,270,1,65,0
"""


class _TooLongError(BaseException):
    """The command took more CPU time than it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What came of one input.

    Attributes:
        code: The command's exit code; -1 of a traceback, -2 of a hang.
        said: Its answer.
        why: The traceback's last lines.
    """

    code: int
    said: str
    why: str = ""


@dataclass(slots=True)
class Tally:
    """How many inputs came to what."""

    counts: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)


def run(arguments: list[str]) -> Made:
    """Run a command in this process, as a shell would."""
    out, err = io.StringIO(), io.StringIO()

    def late(_number: int, _frame: FrameType | None) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, _LIMIT_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        return Made(code=code, said=out.getvalue())
    except _TooLongError:
        return Made(code=-2, said="")
    except BaseException:  # noqa: BLE001 - this is what is looked for
        return Made(code=-1, said="", why="".join(traceback.format_exc().splitlines(True)[-6:]))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
    return Made(code=0, said=out.getvalue())


def make(folder: Path) -> None:
    """Write one good file of every kind."""
    (folder / "table.csv").write_text(_TABLE)
    step = trace("gpt3-125m", layers=1)
    write_document(folder / "step.json", step)
    campaign = Campaign(core_mhz=(1050, 1470, None), mem_mhz=(None,))
    samples = measure(
        step, gpu="sim:rtx3080ti", to=folder / "samples.db", campaign=campaign, measuring=BRISK
    )
    latencies = LatencyTable(
        evidence=samples.evidence,
        gpu=samples.gpu,
        switches=tuple(
            Switch(
                domain=domain,
                from_mhz=None,
                to_mhz=to_mhz,
                call_s=1e-3,
                delay_s=2e-3,
                delay_p05_s=1e-3,
                delay_p95_s=3e-3,
                jitter_s=1e-4,
                stall_s=1e-4,
                repeats=5,
            )
            for domain in Domain
            for to_mhz in (1050, None)
        ),
    )
    write_document(folder / "latencies.json", latencies)
    switching = Switching(latencies=latencies, curve=False)
    planned = plan(samples, Goal(max_slowdown=0.01), switching=switching, raw=True)
    write_document(folder / "plan.json", planned)
    of_table = plan(folder / "table.csv", Goal(max_slowdown=0.05))
    write_document(folder / "table.plan.json", of_table)
    write_document(folder / "score.json", score(of_table, folder / "table.csv"))
    gpu = f"replay:{folder / 'table.csv'}"
    write_document(folder / "validation.json", validate(of_table, gpu=gpu, repeats=2))
    (folder / "gpu.json").write_text(encode(gpu_model("titanx")))


def commands(name: str) -> list[list[str]]:
    """Return what reads a file; ``PATH`` stands for it, ``DIR`` for the folder of good ones."""
    page = ["-o", "DIR/page.html", "--force"]
    return {
        "table.csv": [
            ["plan", "PATH", "--max-slowdown", "5%", "--json"],
            ["predict", "PATH", "--like", "sim:a100", "--json"],
            ["breakdown", "PATH", "--json"],
            ["score", "DIR/table.plan.json", "PATH", "--json"],
        ],
        "step.json": [["watch", "PATH", "--gpu", "sim:a100", "--for", "1s", "--json"]],
        "samples.db": [["plan", "PATH", "--raw", "--latency", "free", "--json"]],
        "latencies.json": [
            [
                "plan",
                "DIR/samples.db",
                "--raw",
                "--latency",
                "PATH",
                "--max-switches",
                "2",
                "--json",
            ]
        ],
        "plan.json": [["report", "PATH", *page]],
        "table.plan.json": [
            ["score", "PATH", "DIR/table.csv", "--json"],
            ["validate", "PATH", "--gpu", "replay:DIR/table.csv", "--repeats", "2", "--json"],
        ],
        "validation.json": [["report", "DIR/table.plan.json", "PATH", *page]],
        "gpu.json": [["watch", "--gpu", "sim:PATH", "--for", "50ms", "--json"]],
    }[name]


FILES = {  # how often of a hundred inputs
    "table.csv": 25,
    "step.json": 8,
    "samples.db": 7,
    "latencies.json": 3,
    "plan.json": 15,
    "table.plan.json": 15,
    "validation.json": 15,
    "gpu.json": 12,
}


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - JSON
    """Yield where every part of a document is, itself included."""
    yield path
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    for key, part in parts:
        yield from _leaves(part, (*path, key))


def _changed(value: Any, chance: random.Random) -> Any:  # noqa: ANN401 - JSON
    """Return another value, as a slip of a hand or a bug would make it."""
    anything: list[Any] = [None, -1, "", "x", [], {}, 1e308, -1e308, True]
    if isinstance(value, bool) or value is None or isinstance(value, dict):
        return chance.choice(anything)
    if isinstance(value, int | float):
        by = chance.choice([-1.0, 1000.0, 1e-3, 0.0, 0.5, 2.0, -500.0])
        other: list[Any] = [value + 1, value - 1, -300, 5, *anything]
        return type(value)(value * by) if chance.random() < 0.6 else chance.choice(other)  # noqa: PLR2004
    if isinstance(value, list) and value:
        return chance.choice([value[:-1], [*value, value[0]], value[::-1], [], value * 2])
    words = ["kept", "not kept", "auto", "achievable", "optimal", "infeasible", "measured"]
    return chance.choice([*words, *anything])


def _text(body: bytes, chance: random.Random) -> bytes:
    """Return bytes with some of them cut, flipped or nested."""
    at = chance.randrange(len(body))
    kind = chance.randrange(4)
    if kind == 0:
        return body[:at]
    if kind == 1:
        return body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
    if kind == 2:  # noqa: PLR2004
        return body[:at] + b"[" * 50_000 + body[at:]
    return body[:at] + body[chance.randrange(len(body)) :]


def _document(body: bytes, chance: random.Random) -> tuple[bytes, str, bool]:
    """Change one part of a document; return it, where, and whether it is really another."""
    parts = json.loads(body)
    path = chance.choice([p for p in _leaves(parts) if p])
    holder = parts
    for key in path[:-1]:
        holder = holder[key]
    before = holder[path[-1]]
    if chance.random() < 0.1 and isinstance(holder, dict):  # noqa: PLR2004
        del holder[path[-1]]
        return json.dumps(parts).encode(), ".".join(map(str, path)), False
    after = _changed(before, chance)
    holder[path[-1]] = after
    other = after != before
    if isinstance(before, int | float) and isinstance(after, int | float):
        other = not math.isclose(before, after, rel_tol=_SAME, abs_tol=_SAME)
    if isinstance(before, list) and isinstance(after, list):
        other = sorted(map(str, before)) != sorted(map(str, after))  # runs are in no order
    return json.dumps(parts).encode(), ".".join(map(str, path)), other


def _cells(body: bytes, chance: random.Random) -> bytes:
    """Change a cell of a table, or a row."""
    rows = [line.split(",") for line in body.decode().splitlines()]
    row = chance.randrange(len(rows))
    column = chance.randrange(len(rows[row]))
    kind = chance.randrange(8)
    if kind == 0:
        rows.append(rows[row])
    elif kind == 1:
        del rows[row][column]
    else:
        cell = rows[row][column]
        try:
            rows[row][column] = str(_changed(float(cell), chance))
        except ValueError:
            rows[row][column] = chance.choice(["", "x", "-1", "nan", "1e308", "auto"])
    return "\n".join(map(",".join, rows)).encode() + b"\n"


def _header(path: Path, chance: random.Random) -> tuple[str, bool]:
    """Change the header of a samples file, its checksum with it."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (body,) = connection.execute("SELECT body FROM header").fetchone()
        changed, where, other = _document(body.encode(), chance)
        text = changed.decode()
        connection.execute("UPDATE header SET body = ?, checksum = ?", (text, checksum(text)))
        connection.commit()
    return where, other


def mutated(path: Path, chance: random.Random) -> tuple[str, bool]:
    """Change a file; return where in a document, and whether to another value."""
    body = path.read_bytes()
    if path.name == "samples.db" and chance.random() < 0.7:  # noqa: PLR2004
        return _header(path, chance)
    if path.suffix == ".json" and chance.random() < 0.85:  # noqa: PLR2004
        body, where, other = _document(body, chance)
        path.write_bytes(body)
        return where, other
    change: Callable[[bytes, random.Random], bytes] = _text
    if path.suffix == ".csv" and chance.random() < 0.9:  # noqa: PLR2004
        change = _cells
    path.write_bytes(change(body, chance))
    return "", False


def attack(number: int, seed: int, folder: Path, progress: Callable[[int], None]) -> Tally:
    """Make so many inputs and count what came of them."""
    good = folder / "good"
    good.mkdir()
    make(good)
    answers: dict[tuple[str, ...], Made] = {}
    tally = Tally()
    names, weights = list(FILES), list(FILES.values())
    page = good / "page.html"

    def answer(arguments: list[str], at: Path) -> Made:
        page.unlink(missing_ok=True)
        filled = [a.replace("PATH", str(at)).replace("DIR", str(good)) for a in arguments]
        made = run(filled)
        shown = page.read_text() if page.exists() else made.said
        return Made(code=made.code, said=shown.replace(str(at), "PATH"), why=made.why)

    for turn in range(number):
        chance = random.Random(f"{seed}/{turn}")  # noqa: S311 - nothing secret
        name = chance.choices(names, weights)[0]
        arguments = chance.choice(commands(name))
        key = (name, *arguments)
        if key not in answers:
            answers[key] = answer(arguments, good / name)
            if answers[key].code not in {0, 7, 8}:
                raise RuntimeError(f"a good file is refused: {arguments}, {answers[key]}")
        bad = folder / name
        bad.write_bytes((good / name).read_bytes())
        where, other = mutated(bad, chance)
        made = answer(arguments, bad)
        outcome = "refused" if made.code > 0 else "answered"
        stated = STATED.get(name, "$^")
        if made.code < 0:
            outcome = "traceback" if made.code == -1 else "hang"
        elif made.code == answers[key].code and other and re.fullmatch(stated, where):
            outcome = "said other" if made.said != answers[key].said else "answered"
        tally.counts[outcome] += 1
        if outcome in {"traceback", "hang", "said other"}:
            tally.told.append(f"{turn} {name} {where} {' '.join(arguments)}\n{made.why}")
            print(tally.told[-1], flush=True)
        bad.unlink(missing_ok=True)
        progress(turn + 1)
    return tally


def _main(number: int, seed: int) -> None:
    began_s, cpu_s = time.monotonic(), time.process_time()

    def progress(done: int) -> None:
        if done % 500 == 0:
            print(f"{done} of {number}, {time.process_time() - cpu_s:.0f} s of CPU", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        tally = attack(number, seed, Path(folder), progress)
    words = ("answered", "refused", "traceback", "hang", "said other")
    rows = "\n".join(f"| {word} | {tally.counts[word]} |" for word in words)
    page = f"""# Files that were edited, cut or garbled

Written by `python studies/mutations.py {number} {seed}`: {number} inputs, one change each, given
to the commands that read them. Everything is simulated or of an invented table. What each word
means is in that file: *said other* is a success whose answer is another, though the file
contradicts itself.

| what came of it | inputs |
|---|--:|
{rows}

{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, load average
{os.getloadavg()[0]:.1f} at the end; {time.process_time() - cpu_s:.0f} s of CPU, \
{time.monotonic() - began_s:.0f} s of wall time.
"""
    print(page)
    if number >= _WHOLE:
        _PAGE.write_text(page)


if __name__ == "__main__":
    _main(*(int(each) for each in [*sys.argv[1:3], *["20000", "1"][len(sys.argv) - 1 :]]))
