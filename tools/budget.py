"""The size of the tree against `budget.toml`, whose numbers may only fall.

    python tools/budget.py            # fails where something is over its budget, or a budget rose
    python tools/budget.py --tighten  # lowers every budget to what is there

A room is a directory of ``src/underclock``; ``top`` is the files of no directory. Lines are those
that ``wc -l`` counts. What a budget was before stands in the repository: in the last commit where
the file differs from it, else in the parents of the last commit that changed it.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
FILE = "budget.toml"
_STEP = 10  # lines: budgets of lines are multiples of it
_SHORTEST = 2  # directories and a file: a path of a file that stands in a room

Budget = dict[str, dict[str, int]]
"""Tables ``rooms`` (lines of each) and ``whole`` (lines, files, pages, commands and options)."""


def present(root: Path) -> Budget:
    """Count what is there now."""
    source = root / "src" / "underclock"
    rooms = Counter[str]()
    files = sorted(source.rglob("*.py"))
    for path in files:
        place = path.relative_to(source).parts
        rooms[place[0] if len(place) >= _SHORTEST else "top"] += _lines(path)
    pages = sorted((root / "docs").glob("*.md"))
    documents = (*root.glob("*.md"), *(root / "docs").rglob("*.md"))
    commands, options = _commands()
    return {
        "rooms": dict(sorted(rooms.items())),
        "whole": {
            "source_files": len(files),
            "tests_lines": sum(map(_lines, (root / "tests").rglob("*.py"))),
            "studies_lines": sum(map(_lines, (root / "studies").rglob("*.py"))),
            "docs_lines": sum(map(_lines, documents)),
            "docs_pages": len(pages),
            "commands": commands,
            "options": options,
        },
    }


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _commands() -> tuple[int, int]:
    """Count commands, and the options of each: of a group, those of any of its commands."""
    from underclock.app.main import cli  # noqa: PLC0415  # the tree can be counted without it

    def options(command: click.Command) -> set[str]:
        own = {p.opts[0] for p in command.params if isinstance(p, click.Option) and not p.hidden}
        inner = command.commands.values() if isinstance(command, click.Group) else ()
        return own.union(*map(options, inner))

    context = click.Context(cli)
    names = cli.list_commands(context)
    found = [cli.get_command(context, name) for name in names]
    return len(names), sum(len(options(each)) for each in (cli, *found) if each is not None)


def over(budget: Budget, found: Budget) -> Iterator[str]:
    """Yield a sentence for each thing that is over its budget or has none, or whose room went."""
    for table, counted in found.items():
        for name, count in counted.items():
            allowed = budget.get(table, {}).get(name)
            if allowed is None:
                yield f"{name} ({count}) has no budget: add it to [{table}] in {FILE}"
            elif count > allowed:
                yield f"{name} has {count}, and its budget is {allowed}"
        for name in budget.get(table, {}).keys() - counted.keys():
            yield f"{name} has a budget and is not there: --tighten takes it out of {FILE}"


def raised(budget: Budget, before: Budget) -> Iterator[str]:
    """Yield a sentence for each budget that is higher than it was.

    A room may be new where the rooms together have no more lines than before.
    """
    rose = False
    for table, allowed in budget.items():
        then = before.get(table, {})
        for name, count in allowed.items():
            if count > then.get(name, count):
                rose = True
                yield f"the budget of {name} rose from {then[name]} to {count}"
    total, was = (sum(each.get("rooms", {}).values()) for each in (budget, before))
    if total > was and not rose:
        yield f"the budgets of all rooms rose from {was} to {total} lines in all"


def earlier(root: Path) -> tuple[list[Budget], str]:
    """Read what the budgets were before.

    Returns:
        The budgets that these may not exceed, and why there are none where git cannot show them.
    """
    try:
        top = _git(root, "rev-parse", "--show-toplevel").strip()
    except (OSError, subprocess.CalledProcessError) as exc:
        said = (getattr(exc, "stderr", "") or str(exc)).strip().splitlines()
        return [], f"no repository here ({said[0] if said else exc})"
    if Path(top).resolve() != root.resolve():
        return [], "no repository of its own here"
    last = _shown(root, "HEAD")
    if last is not None and last != (root / FILE).read_text(encoding="utf-8"):
        return [tomllib.loads(last)], ""
    commits = ["HEAD", *_git(root, "log", "-1", "--full-history", "--format=%H", FILE).split()]
    parents = _git(root, "rev-parse", *(f"{commit}^@" for commit in commits)).split()
    texts = [text for parent in dict.fromkeys(parents) if (text := _shown(root, parent))]
    shallow = _git(root, "rev-parse", "--is-shallow-repository").strip() == "true"
    return list(map(tomllib.loads, texts)), "" if texts or not shallow else "a shallow clone"


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments],  # noqa: S607  # whichever git is installed
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def _shown(root: Path, commit: str) -> str | None:
    """Return the file as a commit has it, or nothing where it has none."""
    try:
        return _git(root, "show", f"{commit}:{FILE}")
    except subprocess.CalledProcessError:
        return None


def tightened(text: str, found: Budget) -> str:
    """Lower every budget of a file's text to what was found, and take out rooms that went."""
    kept, table = list[str](), ""
    for line in text.splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            table = heading[1]
        entry = re.fullmatch(r"(\w+) = (\d+)(.*)", line)
        if entry is None:
            kept.append(line)
        elif (count := found[table].get(entry[1])) is not None:
            by_lines = table == "rooms" or entry[1].endswith("_lines")
            least = -(-count // _STEP) * _STEP if by_lines else count
            kept.append(f"{entry[1]} = {min(least, int(entry[2]))}{entry[3]}")
    return "\n".join(kept) + "\n"


def main(root: Path = ROOT, arguments: list[str] | None = None) -> int:
    """Check the tree, or lower its budgets; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tighten", action="store_true", help="lower budgets to what is there")
    file, found = root / FILE, present(root)
    if parser.parse_args(arguments).tighten:
        file.write_text(tightened(file.read_text(encoding="utf-8"), found), encoding="utf-8")
    budget: Budget = tomllib.loads(file.read_text(encoding="utf-8"))
    before, unseen = earlier(root)
    wrong = [*over(budget, found), *dict.fromkeys(s for b in before for s in raised(budget, b))]
    if unseen:
        print(f"{FILE}: whether a budget rose is not checked: {unseen}", file=sys.stderr)
    for sentence in wrong:
        print(f"{FILE}: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
