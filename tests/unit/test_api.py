"""The package's face: what it exports, and what importing it costs."""

import subprocess
import sys

import pytest

import underclock


def test_every_exported_name_is_there_and_documented() -> None:
    for name in underclock.__all__:
        assert getattr(underclock, name).__doc__, name
    assert sorted(underclock.__all__) == dir(underclock)


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="frobnicate"):
        _ = underclock.frobnicate


def test_importing_loads_nothing_heavy() -> None:
    heavy = {"numpy", "rich", "jinja2", "click", "pynvml", "torch"}
    script = "import sys, underclock; print(' '.join(sys.modules))"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert not heavy & set(ended.stdout.split())
