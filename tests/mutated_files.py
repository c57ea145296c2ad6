"""Files of every kind that is read, changed at random: what becomes of each.

A file that is accepted must say what was decoded of it: numbers that were changed are legal ones,
and are those that come out. One of fifty goes through its command.
"""

import contextlib
import csv
import gzip
import io
import json
import math
import random
import traceback
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trace_kinds import traced_run
from underclock.app import main
from underclock.errors import UnderclockError
from underclock.gpus.models import decode, encode, gpu_model
from underclock.ledger import LedgerRun, read_runs, totals
from underclock.records import SCHEMAS, Evidence, Plan, SampleSet, Step, Validation
from underclock.records.job import Job, JobPlan
from underclock.records.latencies import DriverMoves, LatencyTable
from underclock.records.runs import EndLine, Line, RunLine, StepLine
from underclock.records.serving import ServingPlan
from underclock.runtime.controller.log import is_log, last_run, read_log, summary_of
from underclock.runtime.machine.timetable import State
from underclock.store import read_document, read_samples
from underclock.store.tables import read_profiles
from underclock.tracing.job_files import job_of_traces

_SCHEMAS = Path(__file__).parent / "data" / "schemas"
RECORDS: dict[str, Any] = {
    "step": Step,
    "plan": Plan,
    "validation": Validation,
    "latencies": LatencyTable,
    "driver moves": DriverMoves,
    "job": Job,
    "job plan": JobPlan,
    "serving plan": ServingPlan,
}
_COMMANDS = {
    "plan": "report {} -o page.html --force",
    "job": "plan {}",
    "job plan": "report {} -o page.html --force",
    "table": "plan {}",
    "foreign table": "plan {} --yes",
    "samples": "plan {}",
    "trace": "job traced {}",
    "profile": "job 1f1b --stages 1 --microbatches 2 --profile {}",
    "step": "measure {} --gpu sim:rtx3080ti -o s.db --max-samples 2",
    "run log": "report {} -o page.html --force",
    "GPU model": "doctor --gpu sim:{}",
}
_NUMBERS: tuple[object, ...] = (
    *(0, -1, 1, 9, -210, 0.5, 1e-308, 1e30, 1e308, 2**31, 2**63, 2**64, 10**400, -1e-9),
    *(math.nan, math.inf, -math.inf),
)
_VALUES = (*_NUMBERS, None, True, "", "x", "auto", "1e3", "\x00\x1b[2J", [], {}, [0], {"a": [{}]})
_CELLS = ("", "0", "-1", "nan", "inf", "1e-3", "1e6", "1e308", "auto", "0,5", "x", "é", '"', "1e9")
_Draw = random.Random


class WrongError(Exception):
    """A file was accepted, and says other than what was decoded of it."""


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        bodies: Whole files of it.
        read: Reads one, and refuses it with an `UnderclockError`.
        check: Compares what was read with what the file says; raises `WrongError`.
    """

    suffix: str
    bodies: tuple[bytes, ...]
    read: Callable[[Path], Any]
    check: Callable[[bytes, Any], None] = lambda _body, _read: None


def _kinds() -> dict[str, Kind]:
    """Return every kind of file that is read, by name."""
    found = {}
    for kind, record in RECORDS.items():
        body = (_SCHEMAS / f"{kind}.{SCHEMAS[kind]}.json").read_bytes()
        bodies = (body, gzip.compress(body))
        found[kind] = Kind(
            suffix=".json", bodies=bodies, read=_document(record), check=_check_document
        )
    for kind in ("samples", "merged samples"):
        path = _SCHEMAS / f"{kind}.{SCHEMAS[kind]}.db"
        found[kind] = Kind(suffix=".db", bodies=(path.read_bytes(),), read=read_samples)
    rows = _rows()
    found["table"] = Kind(
        suffix=".csv", bodies=_tables(rows), read=read_samples, check=_check_table
    )
    others = [
        {"GPU": r["gpu"], "kernel_name": r["kernel"], "coreF": r["core_mhz"], "memF": r["mem_mhz"]}
        | {"time/ms": 1e3 * r["time_s"], "power [mW]": 1e3 * r["energy_j"] / r["time_s"]}
        for r in rows
    ]
    found["foreign table"] = Kind(suffix=".csv", bodies=_tables(others), read=_confirmed)
    listed = json.dumps(rows).encode()
    found["table in JSON"] = Kind(
        suffix=".json", bodies=(listed,), read=read_samples, check=_check_listed
    )
    traces = tuple(json.dumps(traced_run(seed).trace()).encode() for seed in range(3))
    found["trace"] = Kind(
        suffix=".json",
        bodies=(*traces, gzip.compress(traces[0])),
        read=lambda path: job_of_traces([path]),
    )
    profile = "stage,instruction,frequency,time,energy\n" + "".join(
        f"0,{what},{mhz},{20 / mhz},{4000 / mhz + mhz / 1000}\n"
        for what in ("forward", "backward")
        for mhz in (900, 1200, 1410)
    )
    found["profile"] = Kind(suffix=".csv", bodies=(profile.encode(),), read=read_profiles)
    about: dict[str, Any] = {"gpu": "ab", "name": "G", "rank": 0, "steps": 100, "energy_j": 90.0}
    gpus = [about | {"auto_j": 100.0, "auto_interval_j": (95.0, 105.0)}]
    ran = {"job": "j", "plan": "p", "lasted_s": 60.0, "evidence": "measured", "against": "blocks"}
    runs = [ran | {"run": f"r{n}", "began_s": 1.7e9 + n, "gpus": gpus} for n in range(4)]
    ledger = b"".join(msgspec.json.encode(msgspec.convert(run, LedgerRun)) + b"\n" for run in runs)
    found["ledger"] = Kind(suffix=".jsonl", bodies=(ledger,), read=_ledger)
    lines: list[Line] = [
        RunLine(evidence=Evidence.SIMULATED, gpus=("G",), workload="w", marks=4, began_s=1.0)
    ]
    about = {"gpu": 0, "state": State.FOLLOWING.value, "planned": 4, "asked": 4, "hits": 4}
    for step in range(6):
        about |= {"step": step, "began_s": 1.0 + step, "time_s": 0.9, "energy_j": 90.0}
        lines.append(msgspec.convert({"line": "step", **about}, StepLine))
    lines.append(EndLine(cpu_s=0.1, wall_s=7.0, looks=50))
    log = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    found["run log"] = Kind(suffix=".jsonl", bodies=(log,), read=_log)
    model = encode(gpu_model("rtx3080ti")).encode()
    found["GPU model"] = Kind(
        suffix=".json",
        bodies=(model,),
        read=lambda path: decode(path.read_bytes(), str(path)),
        check=lambda body, model: _say_same(_loads(body), json.loads(encode(model)), "$"),
    )
    return found


def _rows() -> list[dict[str, Any]]:
    return [
        {"gpu": "G", "kernel": kernel, "core_mhz": core, "mem_mhz": mem}
        | {"time_s": slow * 1800 / core, "energy_j": slow * (90 + core / 20), "count": 2}
        for kernel, slow in (("a", 1.0), ("b/forward", 0.01))
        for core in (600, 900, 1200, 1500)
        for mem in (810, 5001)
    ]


def _tables(rows: list[dict[str, Any]]) -> tuple[bytes, ...]:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    body = text.getvalue().encode()
    return body, body.replace(b",", b";"), gzip.compress(body)


def _document(record: Any) -> Callable[[Path], Any]:
    return lambda path: read_document(path, record)


def _confirmed(path: Path) -> SampleSet:
    return read_samples(path, confirm=lambda _: True)


def _ledger(path: Path) -> Any:
    runs, warnings = read_runs(path)
    return runs, warnings, totals(runs, "month")


def _log(path: Path) -> Any:
    if not is_log(path):
        return read_document(path, Plan)
    lines = last_run(read_log(path))
    summary_of(lines)
    return lines


# What a file says must be what was decoded of it.


def _plain(body: bytes) -> bytes:
    return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body


def _loads(body: bytes) -> Any:
    return json.loads(_plain(body))


def _say_same(file: Any, read: Any, where: str) -> None:
    """Every value of the file is what was read of it; what lacks there has its default."""
    if isinstance(file, dict) and isinstance(read, dict):
        for name, value in file.items():
            _say_same(value, read.get(name, WrongError), f"{where}.{name}")
        return
    if isinstance(file, list) and isinstance(read, list) and len(file) <= len(read):
        if len(file) < len(read) and any(isinstance(each, list | dict) for each in read):
            raise WrongError(f"{where} has {len(file)} parts, and {len(read)} were read")
        for at, (one, other) in enumerate(zip(file, read, strict=False)):  # a record as a list
            _say_same(one, other, f"{where}[{at}]")
        return
    numbers = all(isinstance(each, int | float) for each in (file, read))
    near = numbers and math.isclose(file, read, rel_tol=1e-5)  # a GPU model has six digits
    if isinstance(file, bool) != isinstance(read, bool) or not (near or file == read):
        raise WrongError(f"{where} is {file!r}, and {read!r} was read")


def _check_document(body: bytes, record: Any) -> None:
    _say_same(_loads(body), json.loads(msgspec.json.encode(record)), "$")


def _check_rows(rows: list[dict[str, Any]], samples: SampleSet) -> None:
    if len(rows) != len(samples.samples):
        raise WrongError(f"{len(rows)} rows, and {len(samples.samples)} samples")
    for row, sample in zip(rows, samples.samples, strict=True):
        asked = sample.asked
        read = (sample.kernel, asked.core_mhz, asked.mem_mhz)
        costs = (sample.time_s, sample.energy_j)
        said = (str(row["kernel"]).strip(), *(_mhz(row[name]) for name in ("core_mhz", "mem_mhz")))
        in_file = (float(row["time_s"]), float(row["energy_j"]))
        near = all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(in_file, costs, strict=True))
        if said != read or not near:
            raise WrongError(f"{said}, {in_file} was read as {read}, {costs}")


def _mhz(cell: Any) -> float | None:
    return None if str(cell or "").strip().casefold() in {"", "auto"} else float(cell)


def _lines(body: bytes) -> list[dict[str, Any]]:
    text = _plain(body).decode("utf-8-sig").lstrip("\r\n")
    first = text.lstrip("\r\n").partition("\n")[0]
    return list(csv.DictReader(io.StringIO(text), delimiter=max(",;\t", key=first.count)))


def _check_table(body: bytes, samples: SampleSet) -> None:
    rows = [
        {str(name).strip().casefold().replace(" ", "_"): cell for name, cell in row.items()}
        for row in _lines(body)
    ]
    _check_rows(rows, samples)


def _check_listed(body: bytes, samples: SampleSet) -> None:
    _check_rows(_loads(body), samples)


# How a file is changed.


def _mutated(draw: _Draw, body: bytes, other: bytes) -> bytes:
    """Return a file that is changed at random; rarely another kind of file."""
    packed = body.startswith(b"\x1f\x8b") and draw.random() < 0.7
    plain = gzip.decompress(body) if packed else body
    change = draw.choice(_CHANGES)
    made = other if draw.random() < 0.02 else change(draw, plain)
    return gzip.compress(made) if packed else made


def _truncated(draw: _Draw, body: bytes) -> bytes:
    return body[: draw.randrange(len(body))]


def _flipped(draw: _Draw, body: bytes) -> bytes:
    made = bytearray(body)
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        made[draw.randrange(len(made))] = draw.randrange(256)
    return bytes(made)


def _spliced(draw: _Draw, body: bytes) -> bytes:
    begin, end = sorted(draw.randrange(len(body) + 1) for _ in range(2))
    return body[:end] + body[begin:] if draw.random() < 0.5 else body[:begin] + body[end:]


def _nested(draw: _Draw, body: bytes) -> bytes:
    depth = draw.choice((1, 3, 3000))
    return draw.choice((b"[", b'{"a":')) * depth + body + draw.choice((b"]", b"}", b"")) * depth


def _lines_changed(draw: _Draw, body: bytes) -> bytes:
    lines = body.split(b"\n")
    at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    draw.choice(
        (
            lambda: lines.insert(at, lines[other]),
            lambda: lines.pop(at),
            lambda: lines.__setitem__(at, lines[other]),
        )
    )()
    return b"\n".join(lines)


def _digits(draw: _Draw, body: bytes) -> bytes:
    places = [at for at, byte in enumerate(body) if chr(byte) in "0123456789"]
    made = bytearray(body)
    if places:
        at = draw.choice(places)
        made[at : at + 1] = draw.choice((b"9", b"-1", b"1e9", b"1e-9", b"NaN", b"0", b"7.5", b"99"))
    return bytes(made)


def _cells(draw: _Draw, body: bytes) -> bytes:
    lines = body.split(b"\n")
    at = draw.randrange(len(lines))
    mark = b";" if lines[0].count(b";") > lines[0].count(b",") else b","
    cells = lines[at].split(mark)
    cells[draw.randrange(len(cells))] = draw.choice(_CELLS).encode()
    if draw.random() < 0.2:
        draw.shuffle(cells)
    lines[at] = mark.join(cells)
    return b"\n".join(lines)


def _values(draw: _Draw, body: bytes) -> bytes:
    """Change a value of a JSON document, or of one of its lines."""
    try:
        made = json.loads(body)
    except (ValueError, RecursionError):
        return _cells(draw, body)
    try:
        for _ in range(draw.choice((1, 1, 1, 3))):
            _change_value(draw, made)
        return json.dumps(made).encode()
    except (ValueError, RecursionError):  # a part was put into itself
        return _digits(draw, body)


def _change_value(draw: _Draw, document: Any) -> None:
    places = list(_places(document))
    if not places:
        return
    holder, name = draw.choice(places)
    way = draw.randrange(7)
    if way == 0:
        holder[name] = draw.choice(_VALUES)
    elif way == 1:
        holder[name] = draw.choice(_NUMBERS)
    elif way == 2:
        other, its = draw.choice(places)
        holder[name], other[its] = other[its], holder[name]
    elif way == 3 and isinstance(holder, list):
        holder.insert(name, holder[name])
    elif way == 4 and isinstance(holder, dict):
        unit = name.replace("_s", "_ms").replace("_j", "_mj").replace("_mhz", "_ghz")
        holder[unit if unit != name else f"{name}s"] = holder.pop(name)
    elif way == 5:
        value = holder[name]
        if isinstance(value, int | float) and not isinstance(value, bool):
            holder[name] = value * draw.choice((1e3, 1e-3, 1e6, -1, 2))
    else:  # deep
        for _ in range(draw.choice((1, 3, 100))):
            holder[name] = {"a": [holder[name]]}


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for name, each in list(inside):
        yield value, name
        if isinstance(each, dict | list):
            yield from _places(each)


_CHANGES: tuple[Callable[[_Draw, bytes], bytes], ...] = (
    *(_values, _values, _values, _values, _values, _digits, _digits, _cells),
    *(_truncated, _flipped, _spliced, _lines_changed, _nested),
)


def _outcome(kind: Kind, path: Path, body: bytes, whole: Container[bytes]) -> str:
    """Write a file, read it, and say what became of it; `whole` are files that nothing changed."""
    path.write_bytes(body)
    try:
        found = kind.read(path)
    except UnderclockError as exc:
        of_all = "in no step" in str(exc)  # of every trace of the job
        if not of_all and path.name not in f"{exc} {exc.hint}":
            raise WrongError(f"refused, without its name: {exc}") from exc
        return "refused"
    if body in whole:
        return "unchanged, or another kind's"
    try:
        kind.check(body, found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise WrongError(f"accepted, though it cannot be read again: {exc!r}") from exc
    return "accepted"


def _through_command(words: str) -> None:
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        try:
            main(words.split())
        except SystemExit:
            Path("s.db").unlink(missing_ok=True)


def tried(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Try some files in the current folder; return counts by outcome, and what is wrong."""
    every = _kinds()
    names = sorted(every)
    whole = {body for kind in every.values() for body in kind.bodies}
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(count):
        draw = random.Random(f"{seed} {number}")  # noqa: S311 - to repeat it
        name = names[number % len(names)]
        kind, another = every[name], every[draw.choice(names)]
        body = _mutated(draw, draw.choice(kind.bodies), draw.choice(another.bodies))
        path = Path(f"file{kind.suffix}")
        try:
            counts[_outcome(kind, path, body, whole)] += 1
            if name in _COMMANDS and number // len(names) % 50 == 0:
                _through_command(_COMMANDS[name].format(path.name))
        except Exception:  # noqa: BLE001 - it is what is looked for
            wrong.append(f"{name} {seed} {number}: {traceback.format_exc()}")
    return counts, wrong
