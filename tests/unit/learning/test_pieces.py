"""How a step is cut at marks, and which pieces share a clock."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.learning.pieces import (
    kind_of,
    merged_kinds,
    places_of,
    read_places,
    write_places,
)

ENTER, LEAVE, BACK = "enter", "leave", "back"


def _events(layers: int) -> list[tuple[str, str]]:
    """Return what is seen of a step of a model of layers, of attention and two products each."""
    inside = ["attn", "attn.qkv", "attn.out", "mlp"]
    seen = [(ENTER, "Model"), (ENTER, "emb"), (LEAVE, "emb")]
    for at in range(layers):
        layer = f"h.{at}"
        seen += [(ENTER, layer), (ENTER, f"{layer}.attn")]
        seen += [(ENTER, f"{layer}.attn.qkv"), (LEAVE, f"{layer}.attn.qkv")]
        seen += [(ENTER, f"{layer}.attn.out"), (LEAVE, f"{layer}.attn.out")]
        seen += [(LEAVE, f"{layer}.attn"), (ENTER, f"{layer}.mlp"), (LEAVE, f"{layer}.mlp")]
        seen += [(LEAVE, layer)]
    seen += [(ENTER, "head"), (LEAVE, "head"), (LEAVE, "Model"), (BACK, "head")]
    for at in reversed(range(layers)):
        seen += [(BACK, f"h.{at}"), *((BACK, f"h.{at}.{each}") for each in reversed(inside))]
    return seen


def test_a_long_step_is_marked_deep_and_a_short_one_at_its_layers() -> None:
    deep, _ = places_of(_events(4), 1.0, {LEAVE})
    short, _ = places_of(_events(8), 0.04, {LEAVE})

    assert (ENTER, "h.1.attn.out", 0, 1) in deep
    assert (LEAVE, "h.1.attn.qkv", 0, 1) in deep
    assert {kind_of(place) for place in short} == {(ENTER, "h.*"), (BACK, "h.*"), *_ENDS}
    assert len(short) == 18


_ENDS = {(ENTER, "head"), (BACK, "head")}


def test_what_begins_at_once_is_marked_once_and_the_steps_begin_by_its_own_mark() -> None:
    places, _ = places_of(_events(2), 1.0, {LEAVE})
    paths = [(event, path) for event, path, _, _ in places]

    assert (ENTER, "Model") not in paths
    assert (ENTER, "emb") not in paths
    assert (ENTER, "h.1") in paths
    assert (ENTER, "h.1.attn") not in paths
    assert (BACK, "h.1") in paths
    assert (BACK, "h.1.mlp") not in paths
    assert (LEAVE, "h.1") in paths
    assert (LEAVE, "h.1.mlp") not in paths


def test_of_more_layers_than_marks_every_second_or_third_is_marked() -> None:
    places, _ = places_of(_events(40), 0.0, {LEAVE})
    assert 8 <= len(places) <= 15


def test_a_simulated_gpu_is_marked_where_its_step_has_a_launch() -> None:
    sites = {(ENTER, "h.0.mlp", 0): 7, (ENTER, "h.1.mlp", 0): 3, (BACK, "h.1.mlp", 0): 12}
    places, launches = places_of(_events(2), 0.0, {LEAVE}, sites)
    assert launches == (7, 12)
    assert [place[:2] for place in places] == [(ENTER, "h.0.mlp"), (BACK, "h.1.mlp")]


@pytest.mark.parametrize("seen", [[], [(LEAVE, "a")], [(ENTER, "a")]])
def test_a_step_without_modules_has_no_places(seen: list[tuple[str, str]]) -> None:
    assert places_of(seen, 1.0, {LEAVE}) == ([], ())


def test_what_a_trainer_wrote_is_read_and_anything_else_is_no_place(tmp_path: Path) -> None:
    page = str(tmp_path / "0.page")
    assert read_places(page) == []
    write_places(page, [("step", "", 0, 1), (ENTER, "h.0", 0, 1)])
    assert read_places(page) == [["step", "", 0, 1], [ENTER, "h.0", 0, 1]]
    Path(f"{page}.places").write_text("{not json")
    assert read_places(page) == []


def test_pieces_of_a_kind_share_a_segment() -> None:
    kinds = ["attn", "mlp"] * 3 + ["head"]
    assert merged_kinds(kinds, [0.02, 0.03] * 3 + [0.05], 0.01, 9) == (0, 1, 0, 1, 0, 1, 2)


def test_kinds_too_short_for_a_clock_are_merged_with_what_follows() -> None:
    kinds = ["norm", "mlp"] * 3 + ["head"]
    assert merged_kinds(kinds, [0.001, 0.03] * 3 + [0.05], 0.01, 9) == (0, 0, 0, 0, 0, 0, 1)
    assert merged_kinds(kinds, [0.001, 0.03] * 3 + [0.05], 1.0, 9) == (0,) * 7


@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(1e-4, 0.1)), min_size=1, max_size=40),
    st.floats(1e-4, 0.1),
    st.integers(1, 6),
)
def test_segments_are_few_and_long_whatever_the_step(
    pieces: list[tuple[int, float]], least_s: float, most: int
) -> None:
    kinds, lasts_s = zip(*pieces, strict=True)
    segments = merged_kinds(kinds, lasts_s, least_s, most)
    count = max(segments) + 1
    assert {*segments} == set(range(count))
    assert count <= most
    if count > 1:
        runs: dict[int, list[float]] = {}
        for at, segment in enumerate(segments):
            if at == 0 or segments[at - 1] != segment:
                runs.setdefault(segment, []).append(0.0)
            runs[segment][-1] += lasts_s[at]
        assert all(sum(some) / len(some) >= 0.999 * least_s for some in runs.values())
