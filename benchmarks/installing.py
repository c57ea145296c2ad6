"""What an installation costs: packages, size, and CPU time from the wheel to the demo's page.

Builds the wheel, and installs it, and what it is set beside, each into an empty environment of its
own. Needs a package index, but no GPU.

Usage: python benchmarks/installing.py [--beside zeus kernel-tuner]
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple

_REPOSITORY = Path(__file__).resolve().parents[1]
_MB = 1e6


class _Installed(NamedTuple):
    packages: int
    size_mb: float
    cpu_s: float
    folder: Path


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--beside", nargs="*", default=[], help="packages of an index")
    beside: list[str] = parser.parse_args().beside
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place)
        _cpu_s(*build, cwd=_REPOSITORY)
        wheel = next(place.glob("*.whl"))
        print(f"Python {platform.python_version()}, {os.cpu_count()} cores\n")
        print("| `pip install` | version | packages | size | CPU time |")
        print("|---|---|---|---|---|")
        ours = _row(place, "underclock", str(wheel))
        for name in beside:
            _row(place, name, name)
        demo_s = _cpu_s(ours.folder / "bin/underclock", "demo", "-o", place / "demo", cwd=place)
        if not (place / "demo/report.html").stat().st_size:
            raise SystemExit("the demo wrote no page")
        print(f"\ndemo: {demo_s:.1f} s of CPU; both commands: {ours.cpu_s + demo_s:.1f} s")


def _row(place: Path, name: str, asked: str) -> _Installed:
    found = _installed(place / name.partition("[")[0], asked)
    python = found.folder / "bin/python"
    ask = f"import importlib.metadata as m; print(m.version({name.partition('[')[0]!r}))"
    version = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True)
    print(
        f"| {name} | {version.stdout.strip()} | {found.packages} | {found.size_mb:.0f} MB "
        f"| {found.cpu_s:.1f} s |"
    )
    return found


def _installed(folder: Path, asked: str) -> _Installed:
    """Install into an empty environment, and look at what lies there."""
    venv.create(folder, with_pip=True)
    site = next(folder.glob("lib/python*/site-packages"))
    before = set(site.glob("*.dist-info"))
    before_b = _bytes(site)
    cpu_s = _cpu_s(folder / "bin/pip", "install", "-q", asked, cwd=folder)
    packages = set(site.glob("*.dist-info")) - before
    return _Installed(len(packages), (_bytes(site) - before_b) / _MB, cpu_s, folder)


def _bytes(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def _cpu_s(*command: str | Path, cwd: Path) -> float:
    """Run a command; return what it and its children took of the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {each: at for each, at in os.environ.items() if each != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(list(map(str, command)), check=True, cwd=cwd, env=environment, stdout=sys.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
