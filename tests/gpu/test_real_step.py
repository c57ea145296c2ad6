"""A training step on the first real GPU of this machine: traced, isolated, left as it was.

Deselected unless asked for: `make gpu`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from contracts import LauncherContract, MixingMeasurerContract
from underclock.errors import DeviceError, MeasurementError, NotSupportedError
from underclock.hw.base import Clock, Durations, Measurer, Progress, SystemClock
from underclock.hw.cuda.launcher import CudaLauncher, EagerLauncher
from underclock.hw.measurer import GpuMeasurer
from underclock.hw.nvml import NvmlGpu
from underclock.hw.nvml_calls import nvml_session
from underclock.records import Evidence, Kernel, Kind, MeasurementSettings, Mix, Pass

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.bindings.driver")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no GPU", allow_module_level=True)

from underclock.tracing.captured import running_step, trace_step  # noqa: E402
from underclock.tracing.source import load_step  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

ZOO = Path(__file__).parents[2] / "studies" / "zoo"


class Trainer:
    """A small model with its optimizer, whose whole state can be looked at."""

    def __init__(self, *, scale: float = 1.0) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(1024, 4096),
            torch.nn.Dropout(0.1),
            torch.nn.GELU(),
            torch.nn.BatchNorm1d(4096),
            torch.nn.Linear(4096, 1024),
        ).cuda()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3, fused=True, capturable=True
        )
        self.x = torch.randn(2048, 1024, device="cuda") * scale
        self.calls = 0

    def step(self) -> None:
        self.calls += 1
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.x).square().mean().backward()
        self.optimizer.step()

    def state(self) -> list[Any]:
        moments = [
            value
            for parameter in self.model.parameters()
            for value in self.optimizer.state.get(parameter, {}).values()
        ]
        tensors = [*self.model.state_dict().values(), *moments, self.x]
        return [
            *(tensor.clone() for tensor in tensors),
            torch.cuda.get_rng_state(),
            torch.get_rng_state(),
            torch.tensor([p.grad is None for p in self.model.parameters()]),
        ]


def same(before: list[Any], after: list[Any]) -> bool:
    return len(before) == len(after) and all(
        torch.equal(b.cpu(), a.cpu()) for b, a in zip(before, after, strict=True)
    )


# Of steps that can be captured.
held_step: Callable[..., AbstractContextManager[CudaLauncher]] = running_step  # type: ignore[assignment]


@pytest.fixture
def launcher() -> Iterator[CudaLauncher]:
    with held_step(Trainer().step, name="mlp") as launcher:
        yield launcher


class TestRealLauncher(LauncherContract):
    """Kernels of a captured step."""

    durations_within = 0.03  # the gaps between launches are no launch's

    @pytest.fixture
    def kernel(self, launcher: CudaLauncher) -> Kernel:
        # The longest, so that those gaps of a microsecond do not count.
        return max(launcher.traced.step.kernels, key=lambda kernel: kernel.flops or 0.0)

    @pytest.fixture
    def clock(self) -> Clock:
        return SystemClock()


class TestRealMeasurer(MixingMeasurerContract):
    """At auto clocks; nothing is set, whoever runs it."""

    @pytest.fixture
    def measurer(self, launcher: CudaLauncher) -> Iterator[Measurer]:
        with nvml_session():
            yield _measurer(launcher)

    @pytest.fixture
    def kernel(self, launcher: CudaLauncher) -> Kernel:
        kernels = launcher.traced.step.kernels
        memory = [kernel for kernel in kernels if kernel.kind is Kind.MEMORY and kernel.launch]
        return next(k for k in memory if k.launch and "gelu" in k.launch.operator)


def _measurer(launcher: CudaLauncher) -> GpuMeasurer:
    return GpuMeasurer(
        NvmlGpu(torch.cuda.current_device()),
        launcher,
        SystemClock(),
        evidence=Evidence.MEASURED,
        measuring=MeasurementSettings(kernel_warm_s=1.0, window_s=1.0),
        may_lock=False,
    )


def _rate_s(before: Progress, after: Progress) -> float:
    return (after.elapsed_s - before.elapsed_s) / (after.launches - before.launches)


@pytest.fixture(scope="module")
def layer() -> Iterator[CudaLauncher]:
    """Hold one layer of GPT-3 XL, whose kernels take from 20 µs to 2 ms."""
    with held_step(load_step(f"{ZOO}/gpt.py:xl_layer"), name="xl_layer") as launcher:
        yield launcher


def _looked(
    layer: CudaLauncher, launches: list[Kernel], mix: Mix | None = None
) -> tuple[float, Durations]:
    """Return the time of a round, and what its launches took."""
    clock = SystemClock()
    with layer.loop(launches, mix) as loop:
        clock.sleep_s(2.0)
        before = loop.progress()
        clock.sleep_s(1.0)
        return _rate_s(before, loop.progress()), loop.durations(0.5)


def test_a_long_kernel_alone_takes_inside_what_it_takes_outside(layer: CudaLauncher) -> None:
    kernel = max(layer.traced.step.kernels, key=lambda kernel: kernel.flops or 0.0)
    outside_s, durations = _looked(layer, [kernel])
    (inside_s,) = durations.kernel_s

    assert inside_s == pytest.approx(outside_s, rel=0.02)


@pytest.mark.parametrize("mix", [None, Mix(hot=5, idle_s=5e-3)], ids=["alone", "with co-load"])
def test_launches_of_a_whole_step_add_up_to_it(layer: CudaLauncher, mix: Mix | None) -> None:
    step = layer.traced.step
    round_s, durations = _looked(layer, [step.kernels[i] for i in step.order], mix)

    assert len(durations.kernel_s) == len(step.order)
    coload_s = 5 * (durations.hot_s or 0.0) + (durations.idle_s or 0.0)
    assert sum(durations.kernel_s) + coload_s == pytest.approx(round_s, rel=0.03)
    assert (durations.idle_s is None) == (mix is None)
    if durations.idle_s is not None:  # it counts cycles of a clock that may be lower
        assert 0.98 * 5e-3 < durations.idle_s < 2.0 * 5e-3


def test_coload_runs_between_the_launches_of_a_step(layer: CudaLauncher) -> None:
    step = layer.traced.step
    launches = [step.kernels[i] for i in step.order]
    quarter = len(launches) // 4
    mix = Mix(hot=8, idle_s=2e-3, after=(quarter, 2 * quarter, 3 * quarter, len(launches)))
    _, alone = _looked(layer, launches)
    round_s, durations = _looked(layer, launches, mix)

    coload_s = 8 * (durations.hot_s or 0.0) + (durations.idle_s or 0.0)
    assert sum(durations.kernel_s) + coload_s == pytest.approx(round_s, rel=0.03)
    assert len(durations.pieces_s) == 4
    assert max(durations.pieces_s) < 1.1 * min(durations.pieces_s)
    # The same launches, told apart in the same way: no more than a clock slower.
    for here_s, there_s in zip(durations.kernel_s, alone.kernel_s, strict=True):
        if there_s > 1e-4:
            assert 0.9 * there_s < here_s < 1.4 * there_s


def test_a_kernel_follows_the_clock_that_its_coload_leaves_it(layer: CudaLauncher) -> None:
    kernel = max(layer.traced.step.kernels, key=lambda kernel: kernel.flops or 0.0)
    with nvml_session():
        measurer = _measurer(layer)
        alone, thinned = (
            measurer.measure([kernel], mix=mix, timed=True)
            for mix in (Mix(), Mix(launches=2, idle_s=5e-3))
        )
    assert alone.core_mhz is not None
    assert thinned.core_mhz is not None
    assert alone.durations is not None
    assert thinned.durations is not None
    assert thinned.core_mhz > alone.core_mhz
    assert thinned.durations.kernel_s[0] < alone.durations.kernel_s[0]


def test_mixes_leave_the_state_bit_by_bit() -> None:
    trainer = Trainer()
    trainer.step()
    before = trainer.state()

    with held_step(trainer.step, name="mlp") as launcher:
        step = launcher.traced.step
        for kernels in (step.kernels[:1], [step.kernels[i] for i in step.order], []):
            with launcher.loop(kernels, Mix(launches=2, hot=1, idle_s=1e-3)) as loop:
                while loop.progress().launches == 0:
                    pass
                loop.durations(0.1)

    assert same(before, trainer.state())


def test_a_profiler_that_looks_on_is_not_ended() -> None:
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with held_step(Trainer().step, name="mlp") as launcher, launcher.loop([], Mix(hot=1)) as loop:
        with (
            torch.profiler.profile(activities=activities) as profile,
            pytest.raises(NotSupportedError, match="is looking on"),
        ):
            loop.durations(0.1)
        assert len(profile.profiler.kineto_results.events()) > 0
        assert loop.durations(0.1).hot_s


def test_a_heater_that_does_not_fit_is_a_sentence() -> None:
    with held_step(Trainer().step, name="mlp") as launcher:
        hoard = []
        torch.cuda.empty_cache()
        for size in (2**30, 2**26, 2**25):
            while torch.cuda.mem_get_info()[0] > 2 * size:
                hoard.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        with (
            pytest.raises(MeasurementError, match="heater does not fit into memory"),
            launcher.loop([], Mix(hot=1)),
        ):
            pytest.fail("the block must not run")
        with launcher.loop([], Mix(idle_s=1e-3)) as loop:
            assert loop.durations(0.1).idle_s
        del hoard


@pytest.mark.parametrize("steps_before", [0, 2], ids=["untrained", "trained"])
def test_tracing_and_running_kernels_leave_the_state_bit_by_bit(steps_before: int) -> None:
    trainer = Trainer()
    for _ in range(steps_before):
        trainer.step()
    before = trainer.state()

    with held_step(trainer.step, name="mlp") as launcher:
        for kernel in launcher.traced.step.kernels:
            with launcher.loop([kernel]) as loop:
                while loop.progress().launches == 0:
                    pass

    assert same(before, trainer.state())


def test_an_interrupt_leaves_the_state_bit_by_bit() -> None:
    trainer = Trainer()
    trainer.step()
    before = trainer.state()

    def interrupted() -> None:
        with (
            held_step(trainer.step, name="mlp") as launcher,
            launcher.loop(launcher.traced.step.kernels[:1]),
        ):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert same(before, trainer.state())
    trainer.step()
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    "name",
    ["tiny", "tiny_fused", "tiny_compiled", "tiny_accumulated", "tiny_recomputed"],
)
def test_every_kind_of_step_is_named_and_counted(name: str) -> None:
    traced = trace_step(load_step(f"{ZOO}/gpt.py:{name}"))

    assert not traced.step.obstacle
    named = [k for k in traced.step.kernels if k.launch and k.launch.operator]
    assert sum(kernel.count for kernel in named) >= 0.98 * len(traced.step.order)
    assert [w for w in traced.step.warnings if "the GPU waits for the host" not in w] == []
    passes = {kernel.pass_ for kernel in traced.step.kernels}
    assert {Pass.FORWARD, Pass.BACKWARD, Pass.OPTIMIZER} <= passes
    assert all(group.activity is not None for group in traced.groups)


def test_a_step_that_asks_whether_it_is_captured_is_named_and_says_so() -> None:
    trainer = Trainer()

    def step() -> None:
        trainer.step()
        if torch.cuda.is_current_stream_capturing():
            trainer.x.sigmoid().sum()

    traced = trace_step(step)

    assert "while it is captured the step launches" in traced.step.warnings[0]
    assert {"aten::sigmoid", "aten::sum"} <= {
        kernel.launch.operator for kernel in traced.step.kernels if kernel.launch
    }


def test_shapes_of_one_persistent_function_stay_apart() -> None:
    step = trace_step(load_step(f"{ZOO}/gpt.py:xl_layer")).step
    functions = Counter(
        (kernel.launch.function, kernel.launch.grid) for kernel in step.kernels if kernel.launch
    )
    shared = [key for key, count in functions.items() if count > 1 and "nvjet" in key[0]]
    assert shared
    for function, grid in shared:
        identities = [
            (k.launch.shapes, k.launch.identity, k.pass_)
            for k in step.kernels
            if k.launch and (k.launch.function, k.launch.grid) == (function, grid)
        ]
        assert len(set(identities)) == len(identities)


def test_tracing_twice_gives_one_step() -> None:
    function = load_step(f"{ZOO}/gpt.py:tiny")
    steps = [trace_step(function).step for _ in range(2)]
    assert steps[0].fingerprint == steps[1].fingerprint


def test_a_step_that_asks_for_a_number_is_captured_in_parts() -> None:
    with held_step(load_step(f"{ZOO}/gpt.py:tiny_synchronising"), name="step") as launcher:
        assert launcher.captured.parts.between == {"aten::item": 1}
        assert len(launcher.captured.ends) == 2
    assert torch.randn(8, device="cuda").std() > 0


def test_a_step_that_no_graph_holds_runs_as_it_is_written() -> None:
    trainer = Trainer()
    before = trainer.state()

    def step() -> None:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("it will not be captured")
        trainer.step()

    with running_step(step, name="mlp") as launcher:
        assert isinstance(launcher, EagerLauncher)
        found = launcher.traced.step
        launches = [found.kernels[index] for index in found.order]
        with launcher.loop(launches) as loop:
            SystemClock().sleep_s(0.5)
            durations, progress = loop.durations(0.3), loop.progress()
        with launcher.loop(launches, Mix(hot=1, idle_s=1e-3)) as loop:
            SystemClock().sleep_s(0.5)
            beside = loop.durations(0.3)
        with pytest.raises(NotSupportedError, match="it will not be captured"):
            launcher.loop(launches[:1]).__enter__()

    assert "it will not be captured" in found.obstacle
    assert sum(durations.kernel_s) == pytest.approx(progress.elapsed_s / progress.launches, rel=0.1)
    assert beside.idle_s == pytest.approx(1e-3, rel=0.3)
    assert same(before, trainer.state())


def test_inputs_of_zeros_are_refused() -> None:
    trainer = Trainer(scale=0.0)
    before = trainer.state()
    with pytest.raises(MeasurementError, match="2048x1024 in which every number is 0"):
        trace_step(trainer.step)
    assert same(before, trainer.state())


def test_a_step_with_other_kernels_each_time_is_refused() -> None:
    trainer = Trainer()
    rows = iter(range(64, 4096, 64))

    def step() -> None:
        trainer.step()
        trainer.x[: next(rows)].exp()

    with pytest.raises(MeasurementError, match="different kernels each time: launch"):
        trace_step(step)


def test_out_of_memory_is_a_sentence() -> None:
    hoard: list[Any] = []
    free, _ = torch.cuda.mem_get_info()

    def step() -> None:
        hoard.append(torch.randn(int(free * 0.9) // 4, device="cuda"))

    with pytest.raises(DeviceError, match="ran out of memory"):
        trace_step(step)


def test_a_step_without_kernels_is_refused() -> None:
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    with pytest.raises(Exception, match="launched no kernel"):
        trace_step(nothing)
