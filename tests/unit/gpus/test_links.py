"""What is assumed of links between GPUs, and of collectives over them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from underclock.gpus.models import gpu_model, link_of, model_names
from underclock.physics.costs import busy_w, duration_s
from underclock.records import Kernel, Kind

_H200 = gpu_model("h200")


def _all_reduce(sent: float, *, of: int = 2) -> Kernel:
    shape = f"{of}x[{int(sent)}]"
    return Kernel(name="all-reduce it", kind=Kind.COLLECTIVE, shape=shape, bytes_moved=sent)


@pytest.mark.parametrize(
    ("model", "link"),
    [
        ("NVIDIA H200", "NVLink 4"),
        ("NVIDIA H100 80GB HBM3", "NVLink 4"),
        ("NVIDIA H100 PCIe", "PCIe 5.0"),
        ("NVIDIA A100-SXM4-40GB", "NVLink 3"),
        ("NVIDIA A100 80GB PCIe", "PCIe 4.0"),
        ("NVIDIA GeForce RTX 3080 Ti", "PCIe 4.0"),
        ("NVIDIA B200", "NVLink 5"),
        ("Tesla V100-SXM2-16GB", "NVLink 2"),
        ("NVIDIA GeForce GTX TITAN X", "PCIe 3.0"),
    ],
)
def test_a_gpus_link_is_known_by_the_gpus_name(model: str, link: str) -> None:
    found = link_of(model)

    assert (found.name, found.is_known) == (link, True)
    assert str(found).startswith("times and powers of collectives are assumed, not measured")
    assert "nothing is known" not in str(found)


def test_a_gpu_of_unknown_link_has_the_usual_one_and_says_so() -> None:
    link = link_of("Somebody's GPU")

    assert link.name == "PCIe 4.0"
    assert "nothing is known of this GPU's link" in str(link)


@given(st.floats(1.0, 1e10), st.integers(2, 16))
def test_an_all_reduce_takes_a_ring_there_and_back(sent: float, of: int) -> None:
    link = link_of(_H200.name)
    there = Kernel(
        name="all-gather it", kind=Kind.COLLECTIVE, shape=f"{of}x[8]", bytes_moved=sent / 2
    )

    both_s = link.taken_s(_all_reduce(sent, of=of))
    begins_s = 2 * link.taken_s(there) - both_s

    assert begins_s == pytest.approx(8.4e-6, rel=1e-3)  # once, not twice
    assert both_s == pytest.approx(8.4e-6 + 2 * (of - 1) * 3.4e-6 + sent / 261e9, rel=1e-6)


@pytest.mark.parametrize("name", model_names())
def test_a_collective_takes_its_links_time_and_follows_the_core_little(name: str) -> None:
    model, reduce = gpu_model(name), _all_reduce(268435456.0)
    highest, mem_mhz = float(model.core_mhz[-1]), float(model.mem_mhz[-1])

    constants = model.kernel(reduce)
    there_s, halved_s = (
        float(duration_s(model.constants, constants, highest * share, mem_mhz))
        for share in (1.0, 0.5)
    )

    assert there_s == pytest.approx(link_of(model.name).taken_s(reduce))
    assert there_s < halved_s < 1.05 * there_s


_BLOCK, _REST, _EMBEDDING = 50_358_272, 105_121_792, 103_022_592
"""Parameters of a block of GPT-3 XL, of all else, and of its embedding, each of 2 bytes."""


@pytest.mark.parametrize(
    ("what", "sent", "measured_s", "measured_w"),
    [
        ("_allgather_base", _REST, 0.422e-3, 315.0),
        ("_allgather_base", _BLOCK, 0.219e-3, 311.0),
        ("_reduce_scatter_base", _BLOCK, 0.239e-3, 327.0),
        ("_reduce_scatter_base", _REST, 0.466e-3, 304.0),
        ("allreduce", 2 * _EMBEDDING, 0.707e-3, 288.0),
    ],
)
def test_two_h200s_took_and_drew_so_much(
    what: str, sent: float, measured_s: float, measured_w: float
) -> None:
    """Alone, at auto clocks: docs/evidence/h200/parallel.md."""
    kernel = Kernel(
        name=what, kind=Kind.COLLECTIVE, shape="bf16[8] among 2 ranks", bytes_moved=float(sent)
    )
    constants = _H200.kernel(kernel)

    taken_s = float(duration_s(_H200.constants, constants, 1980.0, 3201.0))
    power_w = float(busy_w(_H200.constants, constants, 1980.0, 3201.0, 50.0))

    assert taken_s == pytest.approx(measured_s, rel=0.17)
    assert power_w == pytest.approx(measured_w, rel=0.1)
