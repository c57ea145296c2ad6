"""What is said where no GPU can be used, and the parts that need none."""

import sys

import pytest

from underclock.errors import DeviceError, NotSupportedError
from underclock.hw.cuda.driver import check, cuda, demangled
from underclock.hw.cuda.driver import torch as usable_torch


class Code(int):
    name = "CUDA_ERROR_INVALID_VALUE"


def test_a_driver_error_names_what_was_asked() -> None:
    with pytest.raises(DeviceError, match="could not add a kernel: CUDA_ERROR_INVALID_VALUE"):
        check("add a kernel", (Code(1),))


def test_a_driver_answer_comes_without_its_code() -> None:
    assert check("x", (Code(0),)) is None
    assert check("x", (Code(0), 5)) == 5
    assert check("x", (Code(0), 5, 6)) == (5, 6)


@pytest.mark.parametrize(
    ("mangled", "plain"),
    [
        ("_ZN2at6native3fooIfEEvPT_", "void at::native::foo<float>(float*)"),
        ("_ZN2at12_GLOBAL__N_13barEv", "at::(anonymous namespace)::bar()"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("_Znonsense", "_Znonsense"),
    ],
)
def test_names_are_written_as_the_profiler_writes_them(mangled: str, plain: str) -> None:
    assert demangled(mangled) == plain


def test_pytorch_without_cuda_is_refused_with_what_to_do() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(NotSupportedError, match=r"without CUDA|sees no CUDA device") as caught:
        usable_torch()
    assert caught.value.hint


@pytest.mark.parametrize(
    ("module", "ask", "words"),
    [("torch", usable_torch, "needs PyTorch"), ("cuda.bindings", cuda, "needs cuda-bindings")],
)
def test_a_missing_library_is_named_where_it_is_needed(
    module: str, ask: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # the import system's way to say absent
    with pytest.raises(NotSupportedError, match=words) as caught:
        ask()  # type: ignore[operator]
    assert "install" in caught.value.hint
