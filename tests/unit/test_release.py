"""What a release rests on: one version, extras that are explained, builds that are the same."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())

BUILD = (
    "import sys; from hatchling.build import *; build_sdist(sys.argv[1]); build_wheel(sys.argv[1])"
)


def test_the_version_stands_in_one_place_and_the_citation_follows() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    stated = [
        path
        for path in (ROOT / "src").rglob("*.py")
        if re.search(r"^__version__ *=", path.read_text(), re.MULTILINE)
    ]

    assert cited["version"] == PROJECT["version"]
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert not stated
    assert (ROOT / "src/underclock/py.typed").is_file()


def test_every_extra_is_explained() -> None:
    page = (ROOT / "docs/start.md").read_text()

    assert set(re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE)) == set(
        PROJECT["optional-dependencies"]
    )


def test_the_wheel_is_tested_on_every_python_that_it_names_before_it_is_published() -> None:
    named = {
        each.rsplit(" ", maxsplit=1)[1]
        for each in PROJECT["classifiers"]
        if re.search(r":: 3\.\d+$", each)
    }
    jobs = WORKFLOW["jobs"]

    assert set(jobs["test"]["strategy"]["matrix"]["python"]) == named
    assert jobs["publish"]["needs"] == "test"
    assert jobs["test"]["needs"] == "build"


def test_only_publishing_may_publish_and_actions_are_pinned_to_commits() -> None:
    rights = {name: job["permissions"] for name, job in WORKFLOW["jobs"].items()}
    used = [
        step["uses"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "uses" in step
    ]

    assert WORKFLOW["permissions"] == {}
    assert rights.pop("publish") == {"id-token": "write"}
    assert all(each == {"contents": "read"} for each in rights.values())
    assert used
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each) for each in used)


@pytest.mark.slow
def test_what_is_built_of_the_sdist_elsewhere_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    first = _built(ROOT, tmp_path / "first", umask=0o022)
    with tarfile.open(next((tmp_path / "first").glob("*.tar.gz"))) as packed:
        packed.extractall(tmp_path / "of", filter="data")
    second = _built(next((tmp_path / "of").iterdir()), tmp_path / "second", umask=0o077)

    assert len(first) == 2
    assert first == second


def _built(source: Path, to: Path, *, umask: int) -> dict[str, str]:
    """Build sdist and wheel; return their hashes."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1760000000"}
    subprocess.run(
        [sys.executable, "-c", BUILD, to], cwd=source, env=environment, umask=umask, check=True
    )
    return {each.name: sha256(each.read_bytes()).hexdigest() for each in sorted(to.iterdir())}
