"""A step captured anew: the same but for its algorithms, or another step."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.core.tracing.recapture import difference, identity, recaptured, unlike
from underclock.core.tracing.step import traced_step
from underclock.records import Kernel, Launch, Pass, Step, StepSource
from underclock.records.work import Node, NodeKind, TracedActivity

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


@given(calls_, choices)
def test_a_step_is_itself(calls: list[Call], choice: Mapping[str, Sequence[str]]) -> None:
    step = step_of(calls, choice)
    assert difference(step, step) is None
    same = recaptured(step, step)
    assert same.step == step
    assert same.changes == ()


@given(calls_, choices, choices)
def test_other_algorithms_are_the_same_step_in_the_names_it_had(
    calls: list[Call], was: Mapping[str, Sequence[str]], is_: Mapping[str, Sequence[str]]
) -> None:
    traced = msgspec.structs.replace(step_of(calls, was), source=SOURCE, parameters={"b": 1})
    captured = step_of(calls, is_)
    assert difference(traced, captured) is None

    found = recaptured(traced, captured)

    assert found.step.order == captured.order
    assert (found.step.source, found.step.parameters) == (SOURCE, {"b": 1})
    assert list(map(identity, found.step.kernels)) == list(map(identity, captured.kernels))
    before = {identity(kernel): kernel.name for kernel in traced.kernels}
    for kernel in found.step.kernels:
        assert before.get(identity(kernel), kernel.name) == kernel.name
    used = {operator for operator, _ in calls}
    assert bool(found.changes) == any(was[each] != is_[each] for each in used)


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


def test_the_same_operator_of_another_module_is_another_step() -> None:
    traced = step_of([("mm", "up")], {"mm": ("f",)})
    assert "in another module, down" in str(
        difference(traced, step_of([("mm", "down")], {"mm": ("f",)}))
    )
    assert "in another module, or none" in str(
        difference(traced, step_of([("mm", "")], {"mm": ("f",)}))
    )


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
