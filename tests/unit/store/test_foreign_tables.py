"""Tables as other programs write them: read once a person confirms it, else refused."""

import csv
import gzip
import io
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import underclock
from refused import assert_refused
from underclock.records import SampleSet
from underclock.store import read_samples, read_table

_NAMES = {  # what our columns are called, and how much of our unit each one's is
    "gpu": "gpu, GPU, gpu_name, device, Device Name",
    "kernel": "kernel, kernel_name, kernelName, app, benchmark",
    "core_mhz": "coreF, graphics_clock, sm_clock, gpu_freq, core_freq, frequency, GPU Clock (MHz), "
    "clocks.sm [MHz], asked_core_mhz, coreMHz, nvml_gr_clock, clock_ghz=1e3, core_clock_khz=1e-3",
    "mem_mhz": "memF, mem_freq, memory_clock, Memory Clock [MHz], mem_clock_mhz, "
    "memory clock/GHz=1e3",
    "time_s": "time/ms=1e-3, time_us=1e-6, duration_us=1e-6, Time (s), timeMs=1e-3, elapsed_sec, "
    "runtime [ns]=1e-9, exec_time_ms=1e-3, median_s, iter_time_s, Kernel Time (µs)=1e-6, ms=1e-3, "
    "time_ms_mean=1e-3",
    "power_w": "power/W, power [mW]=1e-3, power.draw [W], avg_power_w, nvml_power_w, "
    "power_w_median, Power Draw (mW)=1e-3, watts",
    "energy_j": "mJ=1e-3, energy_mj=1e-3, Energy (J), energy/J, gpu_energy_wh=3600, "
    "energy_consumption_j, ps3_energy_j, Energy [mJ]=1e-3",
}
_ROWS = [
    {"gpu": "G", "kernel": k, "core_mhz": c, "mem_mhz": m, "time_s": 1.1e-3 / c, "power_w": 0.1 * c}
    for k in ("a", "b")
    for c in (900, 1200, 1500)
    for m in (810, 5001)
]
_Draw = random.Random


def _table(path: Path, rows: list[dict[str, object]], separator: str = ",") -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], delimiter=separator)
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode()) if path.suffix == ".gz" else b"")
    if path.suffix != ".gz":
        path.write_text(text.getvalue())
    return path


def _foreign(draw: _Draw, *, energy: bool) -> tuple[dict[str, str], list[dict[str, object]]]:
    """Return names of another program for our columns, and the rows under them."""
    ours = [*[*_ROWS[0]][:-1], "energy_j" if energy else "power_w"]
    drawn = {column: draw.choice(_NAMES[column].split(", ")).split("=") for column in ours}
    names = {column: name for column, (name, *_) in drawn.items()}
    units = {column: float(unit[0]) if unit else 1.0 for column, (_, *unit) in drawn.items()}
    draw.shuffle(ours)
    made: list[dict[str, object]] = []
    for row in _ROWS:
        known: dict[str, object] = dict(row)
        known["energy_j"] = float(str(row["power_w"])) * float(str(row["time_s"]))
        made.append(
            {
                names[column]: known[column]
                if column in {"gpu", "kernel"}
                else f"{float(str(known[column])) / units[column]:.12g}"
                for column in ours
            }
        )
    return names, made


def _yes(_: str) -> bool:
    return True


@pytest.mark.parametrize("seed", range(60))
def test_columns_are_recognised_however_they_are_named(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - to repeat it
    names, rows = _foreign(draw, energy=draw.random() < 0.5)
    path = tmp_path / draw.choice(("sweep.csv", "sweep.tsv", "sweep.csv.gz"))
    _table(path, rows, draw.choice(",;\t"))
    lines: list[str] = []

    def answer(line: str) -> bool:
        lines.append(line)
        return True

    found = read_table(path, confirm=answer)

    for sample, row in zip(found.samples, _ROWS, strict=True):
        assert (sample.kernel, sample.asked.core_mhz, sample.asked.mem_mhz) == (
            row["kernel"],
            row["core_mhz"],
            row["mem_mhz"],
        )
        assert sample.time_s == pytest.approx(row["time_s"])
        assert sample.power_w == pytest.approx(row["power_w"])
    (line,) = lines
    for column, name in names.items():
        if name.casefold().strip() != column and f"{column} is {name!r}" not in line:
            assert name in {"GPU", "Time (s)", "Energy (J)", "energy/J", "power/W"}  # as ours
    assert any(line.partition(": ")[2] in warning for warning in found.warnings)


@pytest.mark.parametrize("answer", [None, lambda _: False])
def test_what_is_not_confirmed_is_refused_with_how_it_would_be_read(
    tmp_path: Path, answer: Callable[[str], bool] | None
) -> None:
    names, rows = _foreign(random.Random(1), energy=False)  # noqa: S311
    path = _table(tmp_path / "sweep.csv", rows)

    error = assert_refused(
        lambda: read_samples(path, confirm=answer), path, f"core_mhz is {names['core_mhz']!r}"
    )

    assert "--yes" in error.hint
    loaded = underclock.load(path, yes=True)
    assert isinstance(loaded, SampleSet)
    assert len(loaded.samples) == len(_ROWS)


@pytest.mark.parametrize(
    ("column", "name", "words"),
    [
        ("time_s", "time", "'time' does not say its unit"),
        ("time_s", "elapsed", "'elapsed' does not say its unit"),
        ("power_w", "Power", "'Power' does not say its unit"),
        ("power_w", "MW", "'MW' does not say its unit"),
        ("power_w", "ENERGY_MJ", "'ENERGY_MJ' does not say its unit"),
        ("power_w", "cpu_power_w", "it has "),
        ("time_s", "steps/s", "it has "),
        ("time_s", "tme_s", "did you mean 'tme_s' by time_s?"),
        ("time_s", "gflops", "'gflops' is a rate"),
        ("core_mhz", "sm_clock_mean_mhz", "'sm_clock_mean_mhz' is the clock that ran"),
        ("core_mhz", "cores", "it has "),
        ("core_mhz", "sm", "it has "),
    ],
)
def test_what_a_column_may_not_be_is_not_guessed(
    tmp_path: Path, column: str, name: str, words: str
) -> None:
    rows: list[dict[str, object]] = [
        {name if each == column else each: cell for each, cell in row.items()} for row in _ROWS
    ]

    error = assert_refused(
        lambda: read_table(_table(tmp_path / "t.csv", rows), confirm=_yes),
        tmp_path / "t.csv",
        "lacks the column",
    )

    assert words in error.hint


def test_two_columns_that_may_be_one_are_refused_by_name(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"graphics_clock": row["core_mhz"], "sm_clock": row["core_mhz"], **row} for row in _ROWS
    ]
    path = _table(
        tmp_path / "t.csv", [{k: v for k, v in r.items() if k != "core_mhz"} for r in rows]
    )

    error = assert_refused(
        lambda: read_table(path, confirm=_yes), path, "'graphics_clock' and 'sm_clock'"
    )

    assert "core_mhz" in error.hint


def test_a_sweep_of_one_program_has_its_files_name_and_memory_at_auto(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text("gpu,freq,time [ms],power [mW]\nG,900,2 ms,90000\nG,1800,1,200000\n")

    found = read_table(path, confirm=_yes)

    assert [kernel.name for kernel in found.kernels] == ["gemm"]
    assert [(s.asked.core_mhz, s.asked.mem_mhz, s.time_s) for s in found.samples] == [
        (900, None, 0.002),
        (1800, None, 0.001),
    ]


def test_rows_as_a_json_list_are_a_table(tmp_path: Path) -> None:
    plain = tmp_path / "t.json"
    plain.write_text(json.dumps([{**row, "energy_j": None} for row in _ROWS]))
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    usual = read_samples(_table(tmp_path / "t.csv", [{**row, "energy_j": ""} for row in _ROWS]))

    assert read_samples(plain).samples == usual.samples
    assert read_samples(packed).samples == usual.samples


def test_documents_that_gzip_packed_are_read(tmp_path: Path) -> None:
    step = underclock.trace("gpt3-125m", layers=1)
    underclock.save(step, tmp_path / "step.json")
    packed = tmp_path / "step.json.gz"
    packed.write_bytes(gzip.compress((tmp_path / "step.json").read_bytes()))

    assert underclock.load(packed) == step
    packed.write_bytes(packed.read_bytes()[:-20])
    assert_refused(lambda: underclock.load(packed), packed, "cannot read")
