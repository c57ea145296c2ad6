"""Messages on a socket, however they are cut, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile import framed
from underclock.hw import wire
from underclock.hw.wire import Gone, Unpacker

_MESSAGES = st.lists(st.dictionaries(st.text(), st.integers() | st.text()), max_size=4)


@given(_MESSAGES, st.integers(1, 40))
def test_messages_come_out_as_they_went_in(messages: list[wire.Message], cut: int) -> None:
    sent = b"".join(wire.framed(message) for message in messages)
    unpacker, came = Unpacker(), []
    for begin in range(0, len(sent), cut):
        unpacker.feed(sent[begin : begin + cut])
        while (message := unpacker.next()) is not None:
            came.append(message)
    assert came == messages
    assert unpacker.is_empty


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000, b"[]", b"\xff", b"{}{}", b"x" * 300_001]
)
def test_what_is_no_message_is_the_other_sides_end(body: bytes) -> None:
    unpacker = Unpacker(longest=600_000 if body[0:1] != b"x" else 300_000)
    unpacker.feed(framed(body))
    with pytest.raises(Gone):
        unpacker.next()
