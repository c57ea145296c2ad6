"""Snippets of the documentation, run with stand-ins for the libraries that they hook into."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

_DOCS = Path(__file__).parents[1] / "docs"


def run_snippet(page: str, word: str) -> dict[str, Any]:
    """Run the one Python block of a page that has a word; return its names."""
    blocks = re.findall(r"```python\n(.*?)```", (_DOCS / page).read_text(), re.DOTALL)
    (block,) = (each for each in blocks if word in each)
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - our own words
    return names


def library(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: object) -> ModuleType:
    """Put a module in the place of a library, its parents too."""
    parts = name.split(".")
    for at in range(1, len(parts)):
        parent = ".".join(parts[:at])
        if parent not in sys.modules:
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module
