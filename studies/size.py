"""How large the package is, and how much of it one job goes through.

    OMP_NUM_THREADS=1 python studies/size.py

Lines and files of ``src``; named numbers of the estimation; files and functions of the package that
run while one layer's step is measured on a simulated GPU and while its samples are planned.
"""

import ast
import contextlib
import io
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from pages import ROOT, fill, markdown
from underclock.app.main import main as underclock

SRC = ROOT / "src" / "underclock"
_A_FUNCTION = 1  # the flag of code that has its own names: a class's body has not


def lines() -> Iterator[tuple[object, ...]]:
    """Yield lines of every room: all, code, documentation and comments, empty ones."""
    yield ("room", "files", "lines", "code", "documentation, comments", "empty")
    rooms, total = defaultdict[str, Counter[str]](Counter), Counter[str]()
    for path in sorted(SRC.rglob("*.py")):
        place = path.relative_to(SRC).parts
        counted = _counted(path.read_text(encoding="utf-8"))
        rooms[place[0] if len(place) > 1 else "(top)"].update(counted)
        total.update(counted)
    for room, each in sorted(rooms.items(), key=lambda item: -item[1]["lines"]):
        yield room, *(each[what] for what in ("files", "lines", "code", "words", "empty"))
    yield "**all**", *(total[what] for what in ("files", "lines", "code", "words", "empty"))


def _counted(text: str) -> Counter[str]:
    words, code = set[int](), set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            words.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    empty = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    comments = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in empty:
            code.update(range(token.start[0], token.end[0] + 1))
    code -= words
    words |= comments - code
    count = len(text.splitlines())
    return Counter(
        files=1, lines=count, code=len(code), words=len(words), empty=count - len(code) - len(words)
    )


def numbers(room: str) -> int:
    """Count the named numbers of a room: constants of a file whose value has a number in it."""
    found = 0
    for path in sorted((SRC / room).glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.Assign):
                continue
            names = [
                each.id
                for target in node.targets
                for each in ast.walk(target)
                if isinstance(each, ast.Name) and each.id.lstrip("_").isupper()
            ]
            told = any(
                isinstance(each, ast.Constant) and isinstance(each.value, int | float)
                for each in ast.walk(node.value)
            )
            found += len(names) if told else 0
    return found


def passed(*arguments: str) -> tuple[int, int]:
    """Run a command, and return how many files of the package it goes through, and functions."""
    seen = defaultdict[str, set[str]](set)

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & _A_FUNCTION and str(SRC) in code.co_filename:
            seen[code.co_filename].add(code.co_qualname)

    sys.setprofile(look)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            underclock(list(arguments))
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.setprofile(None)
    return len(seen), sum(map(len, seen.values()))


def jobs() -> Iterator[tuple[object, ...]]:
    """Yield what measuring a step and planning its samples go through."""
    yield ("command", "files", "functions")
    with tempfile.TemporaryDirectory() as folder:
        step, samples, made = (str(Path(folder) / n) for n in ("l.json", "l.db", "plan.json"))
        passed("trace", "gpt3-125m", "-o", step)
        gpu = ("--gpu", "sim:rtx3080ti", "--max-samples", "200")
        yield "`measure`", *passed("measure", step, *gpu, "-o", samples)
        yield "`plan`", *passed("plan", samples, "-o", made)
        late = ("--latency", "6ms", "--force")
        yield "`plan --latency 6ms`", *passed("plan", samples, *late, "-o", made)


def main() -> None:
    """Fill the page."""
    told = [("room", "named numbers"), *((f"`{r}`", numbers(r)) for r in _ESTIMATION)]
    parts = {"lines": markdown(lines()), "jobs": markdown(jobs()), "numbers": markdown(told)}
    fill("size", parts, repeats="Counted, not timed.")


_ESTIMATION = ("core/inference", "core/model")

if __name__ == "__main__":
    main()
