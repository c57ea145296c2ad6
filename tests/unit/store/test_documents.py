"""Records as JSON files: there and back, and every way a file can be wrong."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import refused
from underclock.errors import DataError, UsageError
from underclock.records import (
    AUTO,
    SCHEMAS,
    Aggregate,
    Arm,
    Choice,
    Clocks,
    Cost,
    Evidence,
    GpuInfo,
    Granularity,
    Kernel,
    Kind,
    Objective,
    OtherArm,
    Pass,
    Plan,
    Record,
    Spread,
    Status,
    Step,
    Strategy,
    Validation,
    Verdict,
)
from underclock.store import read_document, write_document

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
changes = st.floats(-0.99, 10.0)
amounts = st.floats(1e-9, 1e9)
mhz = st.none() | st.integers(10, 20_000)
clocks = st.builds(Clocks, core_mhz=mhz, mem_mhz=mhz)
gpus = st.builds(GpuInfo, name=names, driver=st.none() | names, power_limit_w=st.none() | amounts)
evidence = st.sampled_from(Evidence)


def cost(time: float, energy: float) -> Cost:
    """Return the cost of a step against one of 2 s and 300 J."""
    return Cost(
        time_s=2.0 * (1.0 + time),
        energy_j=300.0 * (1.0 + energy),
        time_change=time,
        energy_change=energy,
    )


costs = st.builds(cost, changes, changes)


def spread(auto: tuple[float, ...], other: tuple[float, ...]) -> Spread:
    every = [each / one - 1.0 for each in other for one in auto]
    return Spread(mean=sum(every) / len(every), best=min(every), worst=max(every))


@st.composite
def steps(draw: st.DrawFn) -> Step:
    order = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=12)))
    listed = sorted(set(order))
    titles = draw(st.lists(names, min_size=len(listed), max_size=len(listed), unique=True))
    kernels = tuple(
        Kernel(
            name=title,
            kind=draw(st.none() | st.sampled_from(Kind)),
            pass_=draw(st.sampled_from(Pass)),
            count=order.count(index),
            flops=draw(st.none() | st.floats(0.0, 1e18)),
            bytes_moved=draw(st.none() | amounts),
        )
        for title, index in zip(titles, listed, strict=True)
    )
    return Step(
        name=draw(names),
        kernels=kernels,
        order=tuple(listed.index(index) for index in order),
        parameters=draw(st.dictionaries(names, st.integers(0, 2**40), max_size=3)),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    choices = st.builds(
        Choice,
        core_mhz=mhz,
        mem_mhz=mhz,
        time_change=changes,
        energy_change=changes,
        auto_time_s=amounts,
        auto_energy_j=amounts,
    )
    return Plan(
        evidence=draw(evidence),
        gpu=draw(gpus),
        workload=draw(names),
        objective=draw(st.sampled_from(Objective)),
        max_slowdown=draw(st.none() | st.floats(-0.99, 0.99)),
        granularity=Granularity.KERNEL,
        aggregate=Aggregate.GLOBAL,
        baseline=draw(clocks),
        chosen=Strategy.KERNEL_GLOBAL,
        arms=(
            Arm.of(Strategy.AUTO, cost(0.0, 0.0), Status.BASELINE),
            Arm.of(Strategy.PASS, None, Status.INFEASIBLE),
            Arm.of(Strategy.KERNEL_GLOBAL, draw(costs), Status.OPTIMAL, gap=0.0),
        ),
        kernels=draw(st.dictionaries(names, choices, max_size=4)),
        fixed=draw(st.none() | clocks),
        frontier=tuple(draw(st.lists(costs, max_size=3))),
        warnings=tuple(draw(st.lists(names, max_size=2))),
    )


@st.composite
def validations(draw: st.DrawFn) -> Validation:
    repeats = draw(st.integers(1, 3))
    some = st.tuples(*[st.floats(1.0, 9.0)] * repeats)
    runs = {f"{arm}_{unit}": draw(some) for arm in ("auto", "plan", "fixed") for unit in ("s", "j")}
    fixed = OtherArm(
        name=draw(st.sampled_from(Strategy)),
        clocks=draw(clocks),
        time_s=runs["fixed_s"],
        energy_j=runs["fixed_j"],
        time_change=spread(runs["auto_s"], runs["fixed_s"]),
        energy_change=spread(runs["auto_j"], runs["fixed_j"]),
    )
    return Validation(
        evidence=draw(evidence),
        gpu=draw(gpus),
        workload=draw(names),
        chosen=draw(st.sampled_from(Strategy)),
        repeats=repeats,
        auto_time_s=runs["auto_s"],
        auto_energy_j=runs["auto_j"],
        plan_time_s=runs["plan_s"],
        plan_energy_j=runs["plan_j"],
        time_change=spread(runs["auto_s"], runs["plan_s"]),
        energy_change=spread(runs["auto_j"], runs["plan_j"]),
        promised_time_change=draw(changes),
        promised_energy_change=draw(changes),
        pairs_keeping_energy=draw(st.integers(0, repeats**2)),
        pairs_keeping_time=draw(st.none() | st.integers(0, repeats**2)),
        tolerance=draw(st.none() | amounts),
        verdict=Verdict.INCONCLUSIVE,
        further_repeats=draw(st.none() | st.integers(1, 1000)),
        others=(fixed,),
        warnings=(draw(names),),
    )


@pytest.mark.slow
@given(steps() | plans() | validations())
def test_a_record_comes_back_as_it_went(
    tmp_path_factory: pytest.TempPathFactory, record: Record
) -> None:
    path = tmp_path_factory.mktemp("there") / "record.json"

    write_document(path, record)

    assert read_document(path, type(record)) == record


STEP = Step(name="a step", kernels=(Kernel(name="k", count=2),), order=(0, 0))


def written(path: Path, **changes: object) -> Path:
    """Write a step with some of its JSON changed; ``None`` removes a field."""
    write_document(path, STEP)
    body = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in body.items() if value is not None}))
    return path


def assert_refused(path: Path, *words: str, kind: type[Record] = Step) -> DataError:
    """Reading is a `DataError` that names the file, says these words, and what to do."""
    error = refused.assert_refused(lambda: read_document(path, kind), path, *words)
    assert error.hint
    return error


def test_a_document_is_text_that_people_can_read_and_compare(tmp_path: Path) -> None:
    path = tmp_path / "step.json"

    write_document(path, STEP)

    text = path.read_text()
    assert text.endswith("}\n")
    assert len(text.splitlines()) > 10
    assert json.loads(text)["schema"] == SCHEMAS["step"]


def test_a_document_is_not_overwritten_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    write_document(path, STEP)

    with pytest.raises(UsageError, match="will not overwrite"):
        write_document(path, STEP)
    write_document(path, STEP, force=True)


def test_a_missing_file_says_which_command_makes_it(tmp_path: Path) -> None:
    error = assert_refused(tmp_path / "plan.json", "No such file", kind=Plan)

    assert "underclock plan" in error.hint


def test_a_folder_is_no_document(tmp_path: Path) -> None:
    assert_refused(tmp_path, "directory")


_STEP = f'{{"kind": "step", "schema": {SCHEMAS["step"]}'.encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        _STEP + b', "name": "a st',
        b"[1, 2]",
        b"null",
        b"gpu,kernel\nx,y\n",
        b"\xff\xfe\x00\x01 binary \x00 junk",
        _STEP + b', "name": "\xff"}',
        _STEP + b', "name": "\xff\xff\xff", "kernels": [], "order": []}',
        b'{"schema": "one"}',
        _STEP + b', "deep": ' + b"[" * 100_000,
        b"SQLite format 3\x00" + b"\x00" * 200,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_what_is_no_json_record_is_refused(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "step.json"
    path.write_bytes(body)

    assert_refused(path, "not a readable step file")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"name": None}, "name"),
        ({"name": 3}, "$.name"),
        ({"extra": 1}, "extra"),
        ({"kernels": []}, "at least one kernel"),
        ({"order": [0]}, "count 2 but is launched 1"),
        ({"order": [0, 0, 1]}, "names kernel 1"),
        ({"order": ["first"]}, "$.order[0]"),
        ({"kernels": [{"name": "k", "count": -2}]}, "count must be positive"),
        ({"kernels": [{"name": "k", "pass": "sideways"}]}, "$.kernels[0].pass"),
    ],
)
def test_a_damaged_field_is_named(tmp_path: Path, changes: dict[str, object], word: str) -> None:
    assert_refused(written(tmp_path / "step.json", **changes), word)


def test_auto_clocks_are_null_in_files(tmp_path: Path) -> None:
    path = tmp_path / "clocks.json"

    write_document(path, AUTO)

    assert json.loads(path.read_text()) == {"core_mhz": None, "mem_mhz": None}
