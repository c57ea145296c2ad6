"""Every recording of a training step on an H200 (docs/evidence/h200/ordinary.md)."""

from pathlib import Path

import pytest

from recorded import Recording, read
from underclock.core.tracing.captured import align
from underclock.core.tracing.profile import lost_note, saw_all
from underclock.core.tracing.step import nodes_of
from underclock.records import Kind, Pass
from underclock.records.work import NodeKind, Traced, TracedActivity

pytestmark = pytest.mark.slow  # traces of whole steps: their size, not what they cover

TRACES = Path(__file__).parents[3] / "data" / "traces"
ORDINARY = sorted((TRACES / "ordinary").glob("*.json.gz"))
REAL = sorted(TRACES.glob("*.json.gz"))


def _name(path: Path) -> str:
    return path.name.removesuffix(".json.gz")


@pytest.fixture(scope="module", params=[*REAL, *ORDINARY], ids=_name)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(scope="module")
def recording(path: Path) -> Recording:
    return read(path)


@pytest.fixture(scope="module")
def seen(recording: Recording) -> tuple[TracedActivity, ...]:
    return recording.seen


@pytest.fixture(scope="module")
def traced(recording: Recording) -> Traced:
    return recording.traced("s")


def test_all_that_was_launched_was_seen(recording: Recording) -> None:
    assert saw_all(recording.trace)
    assert lost_note(recording.trace) is None


def test_the_time_of_the_gpu_is_that_of_operators_that_are_known(
    seen: tuple[TracedActivity, ...],
) -> None:
    known_s = sum(one.duration_s for one in seen if one.operator)
    assert known_s >= 0.99 * sum(one.duration_s for one in seen)


def test_the_time_of_the_gpu_is_that_of_kernels_of_the_step(
    recording: Recording, seen: tuple[TracedActivity, ...], traced: Traced
) -> None:
    assert not traced.step.obstacle
    assert sum(k.count for k in traced.step.kernels) == len(traced.step.order)
    launched = {node for group in traced.groups for node in group.nodes}
    nodes = recording.nodes or nodes_of(seen)
    assert launched == {i for i, one in enumerate(nodes) if one.kind is not NodeKind.OTHER}


def test_what_is_captured_is_what_a_plain_run_launches(
    path: Path, recording: Recording, seen: tuple[TracedActivity, ...]
) -> None:
    matched = {id(one) for one in align(recording.nodes, seen) if one is not None}
    captured_s = sum(one.duration_s for one in seen if id(one) in matched)
    least = 0.985 if _name(path) == "mixing" else 0.99  # `nonzero` launches between the parts
    if recording.nodes:
        assert captured_s >= least * sum(one.duration_s for one in seen)


def test_passes_are_told_apart(seen: tuple[TracedActivity, ...]) -> None:
    total_s = sum(one.duration_s for one in seen)
    of_pass = {p: sum(one.duration_s for one in seen if one.pass_ is p) for p in Pass}
    assert min(of_pass[p] for p in (Pass.FORWARD, Pass.BACKWARD, Pass.OPTIMIZER)) > 0.0
    # What comes after the optimizer, as reading the loss does, is of no pass.
    assert of_pass[Pass.OTHER] <= 0.03 * total_s
    assert [one.pass_ for one in seen].index(Pass.FORWARD) < [one.pass_ for one in seen].index(
        Pass.BACKWARD
    )


def test_kernels_have_names_of_their_own_that_say_where_they_run(traced: Traced) -> None:
    kernels = traced.step.kernels
    assert len({kernel.name for kernel in kernels}) == len(kernels)
    for pass_ in (Pass.FORWARD, Pass.BACKWARD):
        mine = [kernel for kernel in kernels if kernel.pass_ is pass_]
        assert sum(bool(kernel.section) for kernel in mine) >= 0.85 * len(mine)
    products = [k for k in kernels if k.kind is Kind.GEMM and k.flops]
    assert all("[" in kernel.shape for kernel in products)
