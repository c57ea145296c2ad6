"""For how much of a step the GPU waits for the host."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorded import read
from underclock.core.tracing.captured import (
    align,
    first_difference,
    host_note,
    otherwise_captured,
    paired,
)
from underclock.core.tracing.profile import captured_calls
from underclock.core.tracing.recapture import difference, identity, recaptured, unlike
from underclock.core.tracing.step import traced_step
from underclock.records import Kernel, Launch, Pass, Step, StepSource
from underclock.records.work import Node, NodeKind, TracedActivity, busy_s


def node(name: str, kind: NodeKind = NodeKind.KERNEL) -> Node:
    return Node(kind=kind, function=name if kind is NodeKind.KERNEL else "")


def activity(name: str, kind: NodeKind = NodeKind.KERNEL, at: float = 0.0) -> TracedActivity:
    function = name if kind is NodeKind.KERNEL else ""
    return TracedActivity(kind=kind, function=function, start_s=at, duration_s=1.0, operator=name)


names = st.lists(st.sampled_from("abc"), min_size=1, max_size=12)


@given(names, st.data())
def test_what_one_run_lacks_is_none_and_the_rest_keeps_order(
    letters: list[str], data: st.DataObject
) -> None:
    kept = data.draw(st.lists(st.sampled_from(range(len(letters))), unique=True).map(sorted))
    seen = [activity(letters[i], at=float(i)) for i in kept]
    matched = align([node(letter) for letter in letters], seen)
    present = [a for a in matched if a is not None]
    assert [a.start_s for a in present] == sorted(a.start_s for a in present)
    assert len({a.start_s for a in present}) == len(present)  # none is given to two nodes
    assert bool(present) == bool(seen)


@pytest.mark.parametrize(
    ("ours", "seen", "expected"),
    [
        ("axb", "ayb", "ayb"),  # another kernel was chosen for one product
        ("axb", "aypb", "a-b"),  # not guessed
        ("aMb", "ayb", "a-b"),  # a kernel is no memset
    ],
)
def test_between_two_that_match_one_of_a_kind_matches_by_place(
    ours: str, seen: str, expected: str
) -> None:
    nodes = [node("M", NodeKind.MEMSET) if name == "M" else node(name) for name in ours]
    matched = align(nodes, [activity(name) for name in seen])
    assert "".join("-" if each is None else each.operator for each in matched) == expected


def test_calls_of_a_capture_pair_off_with_what_works_in_its_graph() -> None:
    event = Node(kind=NodeKind.OTHER)
    calls = (activity("a"), activity("m", NodeKind.MEMSET))
    nodes = [node("a"), event, node("m", NodeKind.MEMSET)]
    assert paired(nodes, calls) == (calls[0], None, calls[1])
    assert paired(nodes[:1], calls) is None
    assert paired([nodes[2], nodes[0]], calls) is None
    assert paired([event], ()) == (None,)


def test_a_capture_that_takes_another_way_is_told() -> None:
    seen = [activity("a"), activity("b"), activity("c"), activity("c")]
    same = [node("a"), node("b"), node("c"), node("c")]
    assert otherwise_captured(same, align(same, seen), seen) is None
    more = [*same, node("mask")]
    assert "launches 1 kernels, memsets or copies that a plain run does not" in str(
        otherwise_captured(more, align(more, seen), seen)
    )
    less = same[:-1]
    assert "leaves out 25.0% of a plain run's GPU time" in str(
        otherwise_captured(less, align(less, seen), seen)
    )
    assert "leaves out 0.0%" in str(otherwise_captured([node("a")], [None], []))


def test_the_first_difference_of_two_captures_is_named() -> None:
    one = [node("a"), node("b")]
    assert first_difference(one, one) is None
    assert first_difference(one, [node("a"), node("c")]) == (
        "launch 1 was b on a grid of 1x1x1, then c on a grid of 1x1x1"
    )
    assert "it launched 2 kernels, then 1; the first extra is b" in str(
        first_difference(one, one[:1])
    )
    assert "it launched 1 kernels, then 2" in str(first_difference(one[:1], one))
    wider = msgspec.structs.replace(one[1], grid=(9, 1, 1))
    assert "9x1x1" in str(first_difference(one, [one[0], wider]))


def _launches(*spans_s: tuple[float, float]) -> list[TracedActivity]:
    return [
        TracedActivity(kind=NodeKind.KERNEL, start_s=begin_s, duration_s=end_s - begin_s)
        for begin_s, end_s in spans_s
    ]


SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 9)).map(lambda one: (one[0], one[0] + one[1]))
)


@given(SPANS)
def test_the_gpu_is_busy_whenever_any_launch_runs(spans: list[tuple[int, int]]) -> None:
    busy = {second for begin, end in spans for second in range(begin, end)}
    assert busy_s(_launches(*spans)) == len(busy)


def test_a_step_that_waits_for_its_host_says_so() -> None:
    launches = _launches((0.0, 0.010), (0.020, 0.030))
    words = host_note(launches, 0.040)
    assert words is not None
    assert words.startswith("the GPU waits for the host for 50% of the step, which takes 40 ms")
    assert words.endswith("launches, which take 20 ms")


@pytest.mark.parametrize("step_s", [0.0221, 0.020, 0.015, None])
def test_a_step_that_the_gpu_bounds_says_nothing(step_s: float | None) -> None:
    assert host_note(_launches((0.0, 0.010), (0.020, 0.030)), step_s) is None


def test_a_recorded_capture_names_what_a_plain_run_did_not_launch() -> None:
    llama = read(Path(__file__).parents[3] / "data" / "traces" / "tiny_llama.json.gz")
    assert llama.capture is not None
    seen = llama.seen
    aligned = align(llama.nodes, seen)
    assert sum(activity is None for activity in aligned) == 29

    matched = paired(llama.nodes, captured_calls(llama.capture))

    assert matched is not None
    assert all(a is not None and a.operator and a.pass_ is not Pass.OTHER for a in matched)
    # Its attention is given a mask only while it is captured.
    masked = [a for a in matched if a is not None and "attention_forward" in a.operator]
    assert {a.shapes.split(", ")[-1] for a in masked} == {"bf16[2x1x1024x1024]"}
    warning = otherwise_captured(llama.nodes, aligned, seen)
    assert warning is not None
    assert warning.startswith("while it is captured the step launches 29 kernels")


SOURCE = StepSource(file="train.py", function="step", sha256="0" * 64)
ALGORITHMS = (("f",), ("g",), ("h", "f"), ("g", "k"), ("h", "g", "k"))
Call = tuple[str, str]
"""An operator and the layer that calls it."""


def step_of(calls: Sequence[Call], algorithms: Mapping[str, Sequence[str]]) -> Step:
    """Return the step that makes these calls, each with the algorithm of its operator."""
    launches = [
        (
            Node(kind=NodeKind.KERNEL, function=function),
            TracedActivity(
                kind=NodeKind.KERNEL,
                start_s=0.0,
                duration_s=1.0,
                operator=f"aten::{operator}",
                shapes="bf16[8x8]",
                module=module,
                pass_=Pass.FORWARD,
            ),
        )
        for operator, module in calls
        for function in algorithms[operator]
    ]
    nodes, matched = zip(*launches, strict=True)
    return traced_step("step", nodes, matched).step


def of_kernels(*names: str, **grids: int) -> Step:
    """Return a step of kernels no operator of which is known."""
    counts = Counter(names)
    kernels = tuple(
        Kernel(
            name=name,
            count=counts[name],
            launch=Launch(
                function=name, grid=(grids.get(name, 1), 1, 1), identity=f"{name}{grids.get(name)}"
            ),
        )
        for name in counts
    )
    places = list(counts)
    return Step(name="step", kernels=kernels, order=tuple(places.index(name) for name in names))


calls_ = st.lists(
    st.tuples(st.sampled_from(["conv", "mm", "mul"]), st.sampled_from(["a", "b"])),
    min_size=1,
    max_size=10,
)
choices = st.fixed_dictionaries(
    {name: st.sampled_from(ALGORITHMS) for name in ("conv", "mm", "mul")}
)


@given(calls_, choices, choices)
def test_other_algorithms_are_the_same_step_in_the_names_it_had(
    calls: list[Call], was: Mapping[str, Sequence[str]], is_: Mapping[str, Sequence[str]]
) -> None:
    traced = msgspec.structs.replace(step_of(calls, was), source=SOURCE, parameters={"b": 1})
    captured = step_of(calls, is_)
    assert difference(traced, captured) is None

    found, changes = recaptured(traced, captured)

    assert found.order == captured.order
    assert (found.source, found.parameters) == (SOURCE, {"b": 1})
    assert list(map(identity, found.kernels)) == list(map(identity, captured.kernels))
    before = {identity(kernel): kernel.name for kernel in traced.kernels}
    for kernel in found.kernels:
        assert before.get(identity(kernel), kernel.name) == kernel.name
    used = {operator for operator, _ in calls}
    assert bool(changes) == any(was[each] != is_[each] for each in used)


@pytest.mark.untraced
@given(calls_, choices, st.data())
def test_a_call_more_is_another_step(
    calls: list[Call], choice: Mapping[str, Sequence[str]], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(calls)))
    more = [*calls[:at], ("new", "a"), *calls[at:]]
    algorithms = {**choice, "new": ("n",)}
    assert difference(step_of(calls, algorithms), step_of(more, algorithms)) is not None
    assert difference(step_of(more, algorithms), step_of(calls, algorithms)) is not None


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (of_kernels("gemm", "gemm"), "without 'copy'"),
        (of_kernels("gemm", "gemm", "copy", "new"), "with a new 'new'"),
        (of_kernels("gemm", "gemm", "copy", "new", "old"), "with a new 'new' and 1 more"),
        (of_kernels("gemm", "scale"), "without 'copy', with a new 'scale'"),
        (of_kernels("copy", "gemm", "gemm"), "its kernels in another order"),
        (of_kernels("gemm", "copy", "gemm"), "at other places or numbers 'gemm'"),
        (of_kernels("gemm", "copy"), "'gemm' 1 x instead of 2 x in a row"),
    ],
)
def test_another_step_is_told_by_what_differs(found: Step, words: str) -> None:
    assert difference(of_kernels("gemm", "gemm", "copy"), found) == words


def _of_shapes(*shapes: str, plain: int = 0) -> Step:
    kernels = [
        Kernel(
            name=f"mm {n}",
            launch=Launch(identity=shape, function="f", operator="aten::mm", shapes=shape),
        )
        for n, shape in enumerate(shapes)
    ]
    kernels += [Kernel(name=f"k{n}", shape="8") for n in range(plain)]
    return Step(name="step", kernels=tuple(kernels), order=tuple(range(len(kernels))))


@pytest.mark.parametrize(
    ("now", "before", "note"),
    [
        (_of_shapes("8", "9"), _of_shapes("8", "9"), None),
        (_of_shapes("8", *"9" * 10), _of_shapes("7", *"9" * 10), None),
        (_of_shapes("8", "9"), _of_shapes("6", "7"), "aten::mm is of 8 in this one, and of 6 in"),
        (_of_shapes("8", plain=1), _of_shapes("8", plain=2), "2 launches in this one, 3 in one be"),
        (_of_shapes("8", plain=1), _of_shapes(plain=2), None),
    ],
)
def test_a_scripts_step_says_how_it_differs_from_another(
    now: Step, before: Step, note: str | None
) -> None:
    warnings = unlike(now, before)

    assert bool(warnings) == (note is not None)
    assert (note or "") in " ".join(warnings)
