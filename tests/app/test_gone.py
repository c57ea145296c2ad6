"""What went is refused with a sentence that says what does its work now."""

import pytest

from underclock.app import gone, main


@pytest.mark.parametrize("command", gone.COMMANDS)
def test_a_command_that_went(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--json"])

    assert ended.value.code == 2
    said = capsys.readouterr().out
    assert f'"{command} is gone"' in said
    assert len(gone.COMMANDS[command]) > 20


@pytest.mark.parametrize("option", gone.OPTIONS)
def test_an_option_that_went(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*option.split()[1:], "x"])

    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert option.rsplit(maxsplit=1)[-1] in said
    assert gone.OPTIONS[option] in said
