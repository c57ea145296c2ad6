"""Files that went, and files that something damaged: read as they were, or refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import underclock
from mutated_files import tried
from refused import assert_refused
from underclock.app.main import GONE_COMMANDS, GONE_OPTIONS, main
from underclock.records import Plan
from underclock.store import json_files, read_document


@pytest.mark.parametrize("command", GONE_COMMANDS)
def test_a_command_that_went(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--json"])

    assert ended.value.code == 2
    said = capsys.readouterr().out
    assert f'"{command} is gone"' in said
    assert len(GONE_COMMANDS[command]) > 20


@pytest.mark.parametrize("option", GONE_OPTIONS)
def test_an_option_that_went(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*option.split()[1:], "x"])

    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert option.rsplit(maxsplit=1)[-1] in said
    assert GONE_OPTIONS[option] in said


FOREIGN = {
    "T4": '{"schema_version": "1.0.0", "results": [{"invalidity": "correct"}]}',
    "Kernel Tuner cache": '{"device_name": "G", "tune_params_keys": ["clock"], "cache": {',
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_kind_of_file_of_others_that_went(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(FOREIGN[kind])

    assert_refused(lambda: underclock.load(path), path, kind, json_files.GONE[kind])


@pytest.mark.parametrize("kind", sorted(json_files.GONE.keys() - FOREIGN.keys()))
@pytest.mark.parametrize("read", [underclock.load, lambda path: read_document(path, Plan)])
def test_a_kind_of_file_that_went(
    kind: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"kind": kind, "schema": 1}))

    assert_refused(lambda: read(path), path, f"is a {kind} file", json_files.GONE[kind])


@pytest.mark.slow
def test_changed_files_of_every_kind_are_read_as_they_say_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    counts, wrong = tried(1020, seed=0)

    assert wrong == []
    assert min(counts["accepted"], counts["refused"]) > 102
