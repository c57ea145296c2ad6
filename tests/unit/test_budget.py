"""Budgets hold, only fall, and are compared wherever git can show what they were."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import budget

_TEXT = "[rooms]\napp = 20  # lines\nhw = 30\n\n[whole]\ncommands = 2\n"


def _git(where: Path, *arguments: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    command = ["git", *who, "-C", str(where), *arguments]
    subprocess.run(command, check=True, capture_output=True)


def _commit(where: Path, text: str, *options: str) -> None:
    (where / "budget.toml").write_text(text)
    _git(where, "add", "-A")
    _git(where, "commit", "-m", "change", *options)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository whose last commit is of the file as above."""
    where = tmp_path / "tree"
    where.mkdir()
    _git(where, "init", "-b", "main")
    _commit(where, _TEXT)
    return where


def _rises(where: Path) -> list[str]:
    now = tomllib.loads((where / "budget.toml").read_text())
    before, unseen = budget.earlier(where)
    assert not unseen
    return [sentence for each in before for sentence in budget.raised(now, each)]


def test_the_command_fails_with_a_sentence_for_each(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    room = tree / "src" / "underclock" / "hw"
    room.mkdir(parents=True)
    (room / "nvml.py").write_text("\n" * 31)

    assert budget.main(tree, []) == 1
    assert "budget.toml: hw has 31, and its budget is 30" in capsys.readouterr().err
    (room / "nvml.py").write_text("\n" * 21)
    budget.main(tree, ["--tighten"])
    assert "hw = 30\n" in (tree / "budget.toml").read_text()
    (room / "nvml.py").write_text("\n" * 19)
    budget.main(tree, ["--tighten"])
    assert "[rooms]\nhw = 20\n" in (tree / "budget.toml").read_text()


def test_a_budget_that_rises_fails_before_and_after_its_commit(tree: Path) -> None:
    raised = _TEXT.replace("hw = 30", "hw = 40").replace("app = 20", "app = 10")
    said = ["the budget of hw rose from 30 to 40"]

    (tree / "budget.toml").write_text(raised)
    assert _rises(tree) == said
    _commit(tree, raised)
    assert _rises(tree) == said
    _git(tree, "commit", "--allow-empty", "-m", "something else")
    assert _rises(tree) == said
    _commit(tree, _TEXT)
    assert _rises(tree) == ["the budget of app rose from 10 to 20"]


def test_where_git_cannot_show_the_past_it_is_said(tree: Path, tmp_path: Path) -> None:
    _commit(tree, _TEXT.replace("hw = 30", "hw = 40"))

    _git(tmp_path, "clone", "--depth=1", f"file://{tree}", "shallow")
    assert budget.earlier(tmp_path / "shallow") == ([], "a shallow clone")
    _git(tmp_path, "clone", f"file://{tree}", "clean")
    assert _rises(tmp_path / "clean") == ["the budget of hw rose from 30 to 40"]

    shutil.copytree(tree, tree / "dist" / "of", ignore=shutil.ignore_patterns(".git", "dist"))
    assert budget.earlier(tree / "dist" / "of") == ([], "no repository of its own here")
    shutil.move(tree / "dist" / "of", tmp_path / "source")
    before, unseen = budget.earlier(tmp_path / "source")
    assert before == []
    assert "no repository here" in unseen
