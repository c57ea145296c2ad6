"""Sweeps as CSV: what is read, and every way a table can be wrong."""

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import refused
from underclock.errors import DataError
from underclock.records import AUTO, Clocks, Evidence, Pass
from underclock.store import read_table
from underclock.store.table_rows import READINGS

HEADER = "gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w"
ROW = "a GPU,gemm,1500,5001,0.5,100.0,200.0"

times_s = st.floats(1e-9, 1e6)
powers_w = st.floats(0.2, 19_000.0)
mhz = st.none() | st.integers(10, 20_000)
names = (
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)
    | st.sampled_from(["layer/forward", "layer/backward", 'with "quotes", and commas'])
).filter(lambda name: name == name.strip())


def table(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def assert_refused(path: Path, *words: str) -> DataError:
    """Reading is a `DataError` that names the file and says these words in one line."""
    return refused.assert_refused(lambda: read_table(path), path, *words)


Row = tuple[str, int | None, int | None, float, float]


@pytest.mark.untraced
@given(
    st.lists(
        st.tuples(names, mhz, mhz, times_s, powers_w).map(
            lambda row: (*row[:4], float(row[3] * row[4]))
        ),
        min_size=1,
        max_size=12,
        unique_by=lambda row: row[:3],
    )
)
def test_every_row_becomes_a_sample_in_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row]
) -> None:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(HEADER.split(","))
    for kernel, core, mem, time_s, energy_j in rows:
        writer.writerow(["a GPU", kernel, core, mem, time_s, energy_j, ""])
    path = tmp_path_factory.mktemp("sweep") / "sweep.csv"
    path.write_text(text.getvalue())

    found = read_table(path)

    assert [
        (s.kernel, s.asked.core_mhz, s.asked.mem_mhz, s.time_s, s.energy_j) for s in found.samples
    ] == rows
    assert {kernel.name for kernel in found.kernels} == {row[0] for row in rows}
    assert found.expected_samples == len(rows)
    assert (found.gpu.name, found.workload) == ("a GPU", "sweep")
    assert found.evidence is Evidence.REPLAYED


@pytest.mark.parametrize(
    ("prefix", "newline"),
    [(b"", b"\n"), (b"\xef\xbb\xbf", b"\n"), (b"", b"\r\n"), (b"", b"\n\n"), (b"", b"\r")],
    ids=["unix", "byte-order mark", "windows", "blank lines", "old mac"],
)
def test_files_of_other_systems_read_the_same(
    tmp_path: Path, prefix: bytes, newline: bytes
) -> None:
    path = tmp_path / "sweep.csv"
    path.write_bytes(prefix + newline.join([HEADER.encode(), ROW.encode(), b""]))

    (sample,) = read_table(path).samples

    assert (sample.kernel, sample.asked) == ("gemm", Clocks(core_mhz=1500, mem_mhz=5001))
    assert (sample.time_s, sample.energy_j) == (0.5, 100.0)


def test_a_column_of_shares_that_the_step_waits_for_is_read(tmp_path: Path) -> None:
    rows = (f"{ROW},0", "a GPU,sum,1500,5001,0.5,100.0,200.0,", "a GPU,add,1500,5001,1,9,9,0.25")
    found = read_table(table(tmp_path / "t.csv", HEADER + ",waited_for", *rows))

    assert [kernel.waited_for for kernel in found.kernels] == [0.0, 1.0, 0.25]
    assert not any("waited_for" in words for words in found.warnings)


@pytest.mark.parametrize(
    ("name", "stated", "expected"),
    [
        ("layer/forward", None, Pass.FORWARD),
        ("layer/backward", "", Pass.BACKWARD),
        ("layer/optimizer", "", Pass.OTHER),  # only what every table has is guessed
        ("forward", "", Pass.FORWARD),
        ("layer", "", Pass.OTHER),
        *[("layer/forward", pass_, pass_) for pass_ in Pass],
    ],
)
def test_the_pass_is_what_the_column_says_or_else_the_name(
    tmp_path: Path, name: str, stated: str | None, expected: Pass
) -> None:
    header, cell = (HEADER, "") if stated is None else (HEADER + ",pass", f",{stated}")
    path = table(tmp_path / "t.csv", header, f"g,{name},,,1,1,{cell}")

    (kernel,) = read_table(path).kernels

    assert kernel.pass_ is expected


class TestHeader:
    @pytest.mark.parametrize("column", HEADER.split(",")[:-2])
    @pytest.mark.parametrize(
        ("separator", "words"), [(",", "commas"), (";", "semicolons"), ("\t", "tabs")]
    )
    def test_a_missing_column_is_named_with_the_separator(
        self, tmp_path: Path, column: str, separator: str, words: str
    ) -> None:
        header = separator.join(name for name in HEADER.split(",") if name != column)

        error = assert_refused(
            table(tmp_path / "t.csv", header, ROW), f"read with {words}", f"the column {column}"
        )

        assert "it needs gpu, kernel, core_mhz, mem_mhz, time_s, and energy_j or" in error.hint
        assert "it has " in error.hint

    def test_an_extra_column_is_left_out_with_what_was_probably_meant(self, tmp_path: Path) -> None:
        path = table(tmp_path / "t.csv", HEADER + ",counts,mood,", ROW + ",7,good,")

        found = read_table(path)

        assert found.kernels[0].count == 1
        (warning,) = found.warnings
        assert "'counts', 'mood', one without a name" in warning
        assert "did you mean 'count'" in warning

    @pytest.mark.parametrize(
        ("lines", "words"),
        [((ROW, ROW), "lacks the column"), ((), "is empty"), ((HEADER,), "no rows")],
    )
    def test_rows_need_a_header_and_a_header_rows(
        self, tmp_path: Path, lines: tuple[str, ...], words: str
    ) -> None:
        error = assert_refused(table(tmp_path / "t.csv", *lines), words)

        assert "time_s" in error.hint or lines == (HEADER,)


BAD_CELLS = [
    *[
        (column, bad, "positive and finite")
        for column in ("time_s", "energy_j", "power_w")
        for bad in ("0", "-1", "nan", "inf", "-inf", "1e999", "1e-300")
    ],
    *[
        (column, bad, "not a number")
        for column in ("time_s", "energy_j", "power_w", "core_mhz", "mem_mhz")
        for bad in ("fast", "1,5", "0x10", "1.0.0", "12 ms")
    ],
    *[(column, "", "is empty") for column in ("gpu", "kernel", "time_s")],
    *[(column, "  ", "is empty") for column in ("gpu", "kernel", "time_s")],
    *[("energy_j", bad, "W; GPUs draw from 0.1 W to 20 kW") for bad in ("0.01", "1e5", "1e12")],
    *[("time_s", bad, "W; GPUs draw from 0.1 W to 20 kW") for bad in ("1e-6", "1e6")],
    *[
        (column, bad, word)
        for column in ("core_mhz", "mem_mhz")
        for bad, word in (
            ("1500.5", "not a whole number"),
            ("0", "positive"),
            ("-15", "positive"),
            ("1", "clocks from 10 to 20000 MHz"),
            ("1740000", "clocks from 10 to 20000 MHz"),
            ("1740000000", "clocks from 10 to 20000 MHz"),
        )
    ],
]


@pytest.mark.parametrize(("column", "bad", "word"), BAD_CELLS)
def test_a_bad_cell_is_named_by_file_line_and_column(
    tmp_path: Path, column: str, bad: str, word: str
) -> None:
    cells = dict(zip(HEADER.split(","), ROW.split(","), strict=True)) | {column: f'"{bad}"'}
    path = table(tmp_path / "t.csv", HEADER, ROW, ROW, ",".join(cells.values()), ROW)

    assert_refused(path, f"{path}, line 4", column, word)


BAD_COUNTS = {"0": "positive", "-3": "positive", "1.5": "not a whole", "": "empty", "x": "number"}


@pytest.mark.parametrize(
    ("column", "bad", "word"),
    [
        *[("count", bad, word) for bad, word in BAD_COUNTS.items()],
        *[("waited_for", bad, "from 0 to 1") for bad in ("-0.1", "1.01", "25 %", "nan", "inf")],
    ],
)
def test_a_bad_cell_of_an_optional_column_is_named_by_file_line_and_column(
    tmp_path: Path, column: str, bad: str, word: str
) -> None:
    path = table(tmp_path / "t.csv", f"{HEADER},{column}", f"{ROW},{bad}")

    error = assert_refused(path, f"{path}, line 2", column, word)

    assert error.hint or column == "count"


@pytest.mark.parametrize("column", ["count", "pass", "waited_for"])
def test_a_kernel_that_contradicts_itself_is_named(tmp_path: Path, column: str) -> None:
    told = {"count": ("2", "3"), "pass": ("forward", "backward"), "waited_for": ("0", "1")}
    first, second = told[column]
    path = table(tmp_path / "t.csv", f"{HEADER},{column}", f"{ROW},{first}", f"{ROW},{second}")

    assert_refused(path, f"{path}, line 3", "'gemm' differs")


@pytest.mark.parametrize("column", ["", ",pass"])
@pytest.mark.parametrize("row", [ROW + ",1,1", ROW.rpartition(",")[0], "a GPU", "a GPU,k,,"])
def test_a_ragged_row_is_named_by_line(tmp_path: Path, row: str, column: str) -> None:
    path = table(tmp_path / "t.csv", HEADER + column, ROW + column.replace("pass", "forward"), row)

    assert_refused(path, f"{path}, line 3", "cells")


def test_two_gpus_are_refused_by_name(tmp_path: Path) -> None:
    error = assert_refused(
        table(tmp_path / "t.csv", HEADER, ROW, ROW.replace("a GPU", "another")),
        "mixes GPUs: a GPU, another",
    )

    assert "split" in error.hint


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe" + HEADER.encode("utf-16-le"),
        f"{HEADER}\na GPU,g\xe9mm,1,1,1,1,1\n".encode("latin-1"),
        bytes(range(256)) * 40,
        b"\x00" * 5_000,
        b"\x7fELF\x02\x01\x01" + b"\x00" * 200,
        HEADER.encode() + b'\na GPU,"never closed,1,1,1,1,1\n',
        HEADER.encode() + b'\na GPU,"closed"badly,1,1,1,1,1\n',
        HEADER.encode() + b"\na GPU," + b"x" * 200_000 + b",1,1,1,1,1\n",
    ],
    ids=["utf-16", "latin-1", "bytes", "zeros", "program", "open quote", "bad quote", "huge cell"],
)
def test_what_is_no_table_is_refused(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(body)

    assert_refused(path)


class TestPower:
    """A column that is not used, but betrays a wrong unit in the two that are."""

    def test_the_worst_row_is_named_with_how_far_it_is_off(self, tmp_path: Path) -> None:
        rows = ("g,k,,,0.5,100.0,200.0", "g,k,,,0.5,100.0,300.0", "g,k,,,0.5,100.0,250.0")
        path = table(tmp_path / "t.csv", HEADER, *rows)

        (warning,) = read_table(path).warnings

        assert f"{path}, line 3" in warning
        assert "50 %" in warning


class TestOtherWaysOfWriting:
    @pytest.mark.parametrize(("separator", "word"), [(";", "semicolons"), ("\t", "tabs")])
    def test_other_separators_are_read_and_said(
        self, tmp_path: Path, separator: str, word: str
    ) -> None:
        usual = read_table(table(tmp_path / "t.csv", HEADER, ROW))

        found = read_table(
            table(tmp_path / "t.csv", *(line.replace(",", separator) for line in (HEADER, ROW)))
        )

        assert (found.samples, found.provenance) == (usual.samples, usual.provenance)
        assert word in found.warnings[0]

    @pytest.mark.parametrize("auto", ["", " ", "auto", "AUTO", " Auto "])
    def test_the_word_auto_is_auto(self, tmp_path: Path, auto: str) -> None:
        path = table(tmp_path / "t.csv", HEADER, f"g,k,{auto},{auto},0.5,100,200")

        assert read_table(path).samples[0].asked == AUTO

    def test_energy_follows_from_power_where_it_is_not_given(self, tmp_path: Path) -> None:
        header = HEADER.replace("energy_j,", "")

        found = read_table(table(tmp_path / "t.csv", header, "g,k,,,0.5,200"))

        assert found.samples[0].energy_j == 100.0
        assert "power_w times time_s" in found.warnings[0]
        one = read_table(table(tmp_path / "t.csv", HEADER, ROW, "a GPU,k,,,0.5,,200"))
        assert one.samples[1].energy_j == 100.0

    @pytest.mark.parametrize("separator", [";", "\t"])
    def test_a_decimal_comma_is_told_how_to_write_it(self, tmp_path: Path, separator: str) -> None:
        row = ROW.replace(",", separator).replace("0.5", "0,5")
        path = table(tmp_path / "t.csv", HEADER.replace(",", separator), row)

        error = assert_refused(path, "line 2", "time_s is '0,5', not a number")

        assert "with a point: 0.5" in error.hint


class TestRepeats:
    def test_repeats_that_scatter_are_warned_of(self, tmp_path: Path) -> None:
        path = table(tmp_path / "t.csv", HEADER, "g,k,,,1,100,", "g,k,,,1,100,", "g,k,,,2,210,")

        (warning,) = read_table(path).warnings

        assert (
            "line 4: energy_j of 'k' at core auto, memory auto is 210, and 100 in line 2" in warning
        )

    @pytest.mark.parametrize("row", ["g,k,,,1e-3,0.1,", "g,k,,,1,1e4,", "g,k,,,1e6,1e8,"])
    def test_repeats_orders_of_magnitude_apart_are_refused(self, tmp_path: Path, row: str) -> None:
        path = table(tmp_path / "t.csv", HEADER, "g,k,,,1,100,", row)

        assert_refused(path, "line 3", "in line 2", "no repeats differ that much")


_HEADER = "gpu,kernel,core_mhz,mem_mhz,time_s,energy_j,power_w," + ",".join(READINGS)
_ROW = "G,a,,,1.0,100,100,1980,3201,51.5,4"


def _table(folder: Path, *rows: str, header: str = _HEADER) -> Path:
    path = folder / "t.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_what_was_read_is_there(tmp_path: Path) -> None:
    (sample,) = read_table(_table(tmp_path, _ROW)).samples

    assert sample.observed == Clocks(core_mhz=1980, mem_mhz=3201)
    assert (sample.temperature_c, sample.throttle_reasons) == (51.5, 4)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("1980", "fast", "line 2: observed_core_mhz is 'fast', not a number"),
        ("1980", "-1980", "line 2: core_mhz must be from 10 to 20000 MHz"),
        ("51.5", "nan", "line 2: temperature_c is 'nan'"),
    ],
)
def test_a_reading_that_cannot_be_is_refused(
    old: str, new: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=sentence):
        read_table(_table(tmp_path, _ROW.replace(old, new)))


def test_a_table_whose_clocks_did_not_hold_says_so(tmp_path: Path) -> None:
    rows = [
        "G,a,1980,,1.0,100,100,1975,3201,51.5,0",
        "G,a,1800,,1.1,95,,1410,3201,51.5,4",
        "G,a,1500,,1.2,90,,1350,3201,51.5,4",
    ]
    held = read_table(_table(tmp_path, rows[0]))
    slipped = read_table(_table(tmp_path, *rows))

    assert not any("clocks" in words for words in held.warnings)
    (words,) = [words for words in slipped.warnings if "clocks did not hold" in words]
    assert "in 2 of 3 rows" in words
    assert "line 3: core_mhz 1800 was asked for, and 1410 was read" in words
