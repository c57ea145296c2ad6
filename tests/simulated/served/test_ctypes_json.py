"""C arguments sent to another process and back."""

import ctypes
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.hw.simulated.served.ctypes_json import (
    Received,
    packed,
    shape_of,
    type_of,
    write_back,
)

_NUMBERS = (
    ctypes.c_uint,
    ctypes.c_int,
    ctypes.c_ulonglong,
    ctypes.c_double,
    ctypes.c_char,
    ctypes.c_void_p,
)
_types: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(_NUMBERS),
    lambda inner: st.one_of(
        st.tuples(inner, st.integers(0, 4)).map(lambda pair: pair[0] * pair[1]),
        st.tuples(
            st.sampled_from([ctypes.Structure, ctypes.Union]), st.lists(inner, max_size=4)
        ).map(
            lambda pair: type(
                "Drawn",
                (pair[0],),
                {"_fields_": [(f"field{i}", kind) for i, kind in enumerate(pair[1])]},
            )
        ),
    ),
    max_leaves=8,
)


@given(_types)
def test_a_type_made_again_is_laid_out_alike(kind: Any) -> None:
    again = type_of(shape_of(kind))

    assert shape_of(again) == shape_of(kind)
    assert ctypes.sizeof(again) == ctypes.sizeof(kind)


@given(_types, st.data())
def test_what_the_function_writes_comes_back(kind: Any, data: st.DataObject) -> None:
    size = ctypes.sizeof(kind)
    before, after = (data.draw(st.binary(min_size=size, max_size=size)) for _ in range(2))
    mine = kind.from_buffer_copy(before)

    received = Received(packed(ctypes.byref(mine)))
    theirs = received.passed._obj  # noqa: SLF001
    assert bytes(theirs) == before
    ctypes.memmove(ctypes.addressof(theirs), after, size)
    write_back(ctypes.byref(mine), received.answer())

    assert bytes(mine) == after


def test_every_structure_of_nvml_can_be_sent() -> None:
    found = 0
    for kind in vars(pynvml).values():
        if hasattr(kind, "_fields_"):
            assert ctypes.sizeof(type_of(shape_of(kind))) == ctypes.sizeof(kind), kind
            found += 1
    assert found > 100


@pytest.mark.parametrize(
    "sent",
    [
        {"value": "?!", "bytes": "", "as": "pointer"},
        {"value": "I", "bytes": "00", "as": "pointer"},
        {"to": [-1, "I"], "bytes": "", "as": "array"},
        {"to": {"struct": []}, "bytes": "", "as": "pointer"},
        {"text": "no hex"},
        {"something": 1},
    ],
)
def test_what_is_no_argument_is_refused(sent: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each says it in its own words
        Received(sent)
