"""What is said where no GPU can be used, and the parts that need none."""

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from underclock.errors import NotSupportedError, StuckError, UsageError
from underclock.hw.cuda import feed as feeding
from underclock.hw.cuda.driver import cuda, demangled
from underclock.hw.cuda.driver import torch as usable_torch
from underclock.hw.cuda.feed import Feed
from underclock.hw.cuda.torch_step import check_free, recorded
from underclock.hw.lockstep import RankPace


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


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ({"cuda": None, "hip": "6.4"}, "was built for AMD's GPUs"),
        ({"cuda": None}, "was built without CUDA"),
        ({"cuda": "13.0"}, "PyTorch sees no CUDA device"),
    ],
)
def test_a_pytorch_for_other_devices_is_named(
    monkeypatch: pytest.MonkeyPatch, version: dict[str, str | None], words: str
) -> None:
    other = SimpleNamespace(
        __version__="2.11.0",
        version=SimpleNamespace(**version),
        cuda=SimpleNamespace(is_available=lambda: False),
    )
    monkeypatch.setitem(sys.modules, "torch", other)
    with pytest.raises(NotSupportedError, match=words) as caught:
        usable_torch()
    assert "--assume" in caught.value.hint


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


class FakeCuda:
    """As much of torch.cuda as keeping a stream fed needs; what is launched never ends."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def current_device(self) -> int:
        return 0

    def set_device(self, device: int) -> None:
        assert device == 0

    def Stream(self) -> object:  # noqa: N802 - PyTorch's name
        return self

    def Event(self, *, enable_timing: bool) -> "FakeCuda":  # noqa: N802
        assert enable_timing
        return self

    def record(self, _stream: object) -> None:
        pass

    def query(self) -> bool:
        return self.ended.is_set()

    def elapsed_time(self, _other: object) -> float:
        return 1.0


def test_launches_that_never_end_are_not_waited_for_for_ever() -> None:
    fake = FakeCuda()
    feed = Feed(SimpleNamespace(cuda=fake), lambda _stream: None, per_round=1, pace=RankPace())
    with pytest.raises(StuckError, match=r"in flight did not end in 0\.01 s: the GPU hangs"):
        feed.close(longest_s=0.01)

    fake.ended.set()
    feed.close()


def test_a_signal_does_not_wait_a_minute_for_a_gpu_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeding, "_HURRIED_S", 0.01)
    cuda = SimpleNamespace(cuda=FakeCuda())
    with (
        pytest.raises(StuckError, match=r"in flight did not end in 0\.01 s"),
        Feed(cuda, lambda _stream: None, 1, RankPace()),
    ):
        raise KeyboardInterrupt


def free_torch(*, capturing: bool = False, profiled: bool = False) -> Any:
    return SimpleNamespace(
        cuda=SimpleNamespace(is_current_stream_capturing=lambda: capturing),
        autograd=SimpleNamespace(_profiler_enabled=lambda: profiled),
    )


@pytest.mark.parametrize(
    ("blocking", "torch", "words"),
    [
        ("1", free_torch(), "CUDA_LAUNCH_BLOCKING is set"),
        ("0", free_torch(capturing=True), "being captured on this stream already"),
        ("", free_torch(profiled=True), "a profiler of PyTorch's is active"),
    ],
)
def test_what_is_in_the_way_of_a_trace_is_named(
    blocking: str, torch: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    check_free(free_torch())
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", blocking)
    with pytest.raises(UsageError, match=words) as refused:
        check_free(torch)
    assert refused.value.hint


def test_a_trace_of_more_events_than_may_be_is_not_read() -> None:
    with recorded(torch, most_events=3) as trace:
        torch.ones(8).relu().sum()
    assert not trace
