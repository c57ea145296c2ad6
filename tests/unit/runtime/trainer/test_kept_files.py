"""Files that were there before a command ran, put back after it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from underclock.runtime.trainer.kept_files import ASIDE, KEPT, LOOK, put_back

_BEFORE = """
import os, shutil, sys
from underclock.runtime.trainer.kept_files import protect_files
protect_files()
"""


def run(folder: Path, code: str, *, protect: bool = True) -> list[str]:
    """Run code that changes files, put back what it changed, and return what was said."""
    look = folder / "look" / "look.json"
    look.parent.mkdir()
    look.write_text(json.dumps({"protect": protect}))
    subprocess.run(
        [sys.executable, "-c", _BEFORE + code], cwd=folder, env={LOOK: str(look)}, check=True
    )
    said: list[str] = []
    put_back(look.parent / KEPT, said.append)
    assert not list(folder.rglob(f"*{ASIDE}"))
    return said


@pytest.mark.parametrize(
    "code",
    [
        "open('last.pt', 'w').write('new')",
        "open('last.pt', 'a').write('new')",
        "open('last.pt', 'r+').write('new')",
        "os.close(os.open('last.pt', os.O_WRONLY | os.O_TRUNC))",
        "open('new.tmp', 'w').write('new'); os.replace('new.tmp', 'last.pt')",
        "open('new.tmp', 'w').write('new'); os.rename('new.tmp', 'last.pt')",
        "os.remove('last.pt')",
        "os.rename('last.pt', 'last.1.pt')",
        "shutil.copyfile(sys.executable, 'last.pt')",
        "open('last.pt', 'w').write('new'); open('last.pt', 'w').write('newer')",
        "os.chdir('sub'); open('../last.pt', 'w').write('new')",
        "os.fork() or (open('last.pt', 'w').write('new'), os._exit(0)); os.wait()",
    ],
)
def test_a_file_that_was_there_is_as_it_was(tmp_path: Path, code: str) -> None:
    file = tmp_path / "last.pt"
    file.write_text("old")
    (tmp_path / "sub").mkdir()

    assert (run(tmp_path, code), file.read_text()) == ([], "old")


def test_new_files_stay_and_old_ones_may_be_read(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("old")
    run(tmp_path, "open('new', 'w').write(open('data').read()); open('new', 'w').write('newer')")
    assert (tmp_path / "new").read_text() == "newer"
    assert not (tmp_path / "look" / KEPT).exists()


def test_a_checkpoint_that_pytorch_writes_is_put_back(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "last.pt").write_text("old")
    run(
        tmp_path,
        "import torch, underclock.runtime.trainer.kept_files as kept\n"
        "kept.watch_libraries()\n"
        "torch.save({'step': 0}, 'last.pt')\n"
        "assert torch.load('last.pt') == {'step': 0}\n",
    )
    assert (tmp_path / "last.pt").read_text() == "old"


def test_a_list_that_breaks_off_puts_back_what_it_names(tmp_path: Path) -> None:
    file = tmp_path / "last.pt"
    file.with_name(f"last.pt{ASIDE}").write_text("old")
    listed = tmp_path / KEPT
    listed.write_text(json.dumps([str(file), f"{file}{ASIDE}"]) + '\n["/nowh')

    assert put_back(listed, lambda _said: None) == (str(file),)

    assert file.read_text() == "old"
