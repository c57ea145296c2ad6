"""From what is written after ``--gpu`` to what answers, and what it is asked for in vain."""

import pytest

from underclock.app.doctor import examine
from underclock.errors import NotSupportedError, UsageError
from underclock.hw.base import Capability, GpuKind, parse_gpu


@pytest.mark.parametrize(
    ("text", "kind", "name", "unit", "index"),
    [
        ("sim:rtx3080ti", GpuKind.SIMULATED, "rtx3080ti", 0, 0),
        ("sim:rtx3080ti#12", GpuKind.SIMULATED, "rtx3080ti", 12, 0),
        ("sim:rtx3080ti#smooth", GpuKind.SIMULATED, "rtx3080ti#smooth", 0, 0),
        ("sim:rtx3080ti#3#smooth", GpuKind.SIMULATED, "rtx3080ti#smooth", 3, 0),
        ("sim:my.json#smooth", GpuKind.SIMULATED, "my.json#smooth", 0, 0),
        ("sim:my#model.json", GpuKind.SIMULATED, "my#model.json", 0, 0),
        ("sim:my#model.json#2", GpuKind.SIMULATED, "my#model.json", 2, 0),
        ("replay:a#1.csv", GpuKind.REPLAYED, "a#1.csv", 0, 0),
        ("nvml", GpuKind.REAL, "", 0, 0),
        ("nvml:", GpuKind.REAL, "", 0, 0),
        ("nvml:12", GpuKind.REAL, "", 0, 12),
    ],
)
def test_a_name_is_taken_apart(text: str, kind: GpuKind, name: str, unit: int, index: int) -> None:
    found = parse_gpu(text)

    assert (found.kind, found.name, found.unit, found.index) == (kind, name, unit, index)
    assert found.text == text


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("cuda:0", "unknown GPU 'cuda:0'", "nvml:0"),
        ("", "unknown GPU ''", "sim:rtx3080ti"),
        ("sim:", "names no GPU", "sim:rtx3080ti"),
        ("replay", "names no GPU", "replay:TABLE.csv"),
        ("sim:rtx3080ti#", "simulated GPU's unit", "sim:rtx3080ti#3"),
        ("sim:rtx3080ti#-1", "simulated GPU's unit", "sim:rtx3080ti#3"),
        ("sim:rtx3080ti#one", "simulated GPU's unit", "sim:rtx3080ti#3"),
        ("sim:rtx3080ti#1.5", "simulated GPU's unit", "sim:rtx3080ti#3"),
        ("sim:rtx3080ti#\N{SUPERSCRIPT TWO}", "simulated GPU's unit", "sim:rtx3080ti#3"),
        ("nvml:first", "cannot read 'first'", "nvml:0"),
        ("nvml:-1", "cannot read '-1'", "nvml:0"),
        ("nvml: 1", "cannot read ' 1'", "nvml:0"),
        ("nvml:\N{SUPERSCRIPT TWO}", "cannot read", "nvml:0"),
    ],
)
def test_what_names_no_gpu_is_refused(text: str, words: str, hint: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        parse_gpu(text)
    assert hint in refused.value.hint


def test_what_a_gpu_cannot_do_is_refused() -> None:
    with pytest.raises(UsageError, match=f"'replay:t.csv' cannot {Capability.READ}: a table only"):
        examine("replay:t.csv")
    schedule = Capability.SCHEDULE
    with pytest.raises(NotSupportedError, match=f"'nvml:0' cannot {schedule}: this version"):
        parse_gpu("nvml:0").need(schedule)
