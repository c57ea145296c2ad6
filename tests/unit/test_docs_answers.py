"""A newcomer's questions are answered one click from README, in words that are explained."""

import re
from pathlib import Path

import click
import pytest

import underclock
from underclock.app.main import cli

_ROOT = Path(__file__).resolve().parents[2]
_README = (_ROOT / "README.md").read_text()
_FOR_USERS = [
    _ROOT / "README.md",
    *(page for page in _ROOT.glob("docs/*.md") if page.stem not in {"model", "architecture"}),
]
_ANSWERS = {
    "what will I save": "docs/start.md#what-will-i-save",
    "is it real": "docs/proven.md",
    "can it break my training": "docs/safe.md#what-it-does-to-training",
    "how do I undo": "docs/safe.md#undo-everything",
    "does it need root": "docs/your_step.md#without-root",
    "which GPUs": "docs/proven.md#which-gpus",
    "many GPUs": "docs/jobs.md",
    "how sure": "docs/reading.md#how-sure-it-is",
    "how long does it take": "docs/start.md#how-long-it-takes-and-what-it-costs",
    "what does it cost": "docs/start.md#how-long-it-takes-and-what-it-costs",
    "what does my admin have to do": "docs/operators.md",
    "how is it different from a power cap": "docs/proven.md#a-power-cap-or-one-clock",
}
_PRIVATE = re.compile(r"\b(an? arm|arms|in company|closure|told|99 of 100)\b", re.IGNORECASE)


def _anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", (_ROOT / page).read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"\s+", "-", heading) for heading in plain}


def _prose(text: str) -> str:
    return re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("question", _ANSWERS)
def test_a_question_is_answered_one_click_from_the_readme(question: str) -> None:
    page, _, anchor = _ANSWERS[question].partition("#")

    assert f"]({_ANSWERS[question]})" in _README
    assert not anchor or anchor in _anchors(page)


def test_the_readme_is_a_screen_and_says_what_was_not_tried() -> None:
    assert len(_README.splitlines()) <= 60
    assert "Locking clocks has not been tried on real hardware" in _README


@pytest.mark.parametrize("page", _FOR_USERS, ids=lambda page: page.stem)
def test_pages_for_users_have_no_private_words(page: Path) -> None:
    assert _PRIVATE.findall(_prose(page.read_text())) == []


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_help_has_no_private_words(name: str) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command is not None

    said = command.get_help(click.Context(command, info_name=name, parent=context))

    assert _PRIVATE.findall(said.replace("--compare", "").replace("ARMS", "")) == []


def test_a_glossary_of_twenty_words_is_all_that_is_needed() -> None:
    glossary = (_ROOT / "docs/reading.md").read_text().partition("## Glossary")[2]

    assert len(re.findall(r"^\| (?!word|---)", glossary, re.MULTILINE)) <= 20


def test_the_reference_names_every_command_and_public_name() -> None:
    text = (_ROOT / "docs/reference.md").read_text()
    named = set(re.findall(r"`([^`]+)`", text))

    assert set(cli.list_commands(click.Context(cli))) <= named
    assert set(underclock.__all__) <= named
