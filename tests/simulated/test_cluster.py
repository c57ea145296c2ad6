"""Boards of a simulated cluster: what they run, and how they differ."""

import pytest

from simulated_jobs.cluster import Board, Link, boards_of, piece_of
from underclock.gpus.models import gpu_model
from underclock.hw.simulated.costs import Costs, Piece
from underclock.hw.simulated.device import VirtualGpu
from underclock.physics.constants import KernelConstants
from underclock.records import Kind
from underclock.workloads import workload

H200 = gpu_model("h200")
CALM = KernelConstants(core_mcycles=30.0, work_j_per_v2=1.0)
DRAM = KernelConstants(dram_mcycles=60.0, dram_j=2.0)


def test_a_piece_takes_what_its_kernels_take() -> None:
    costs = Costs(H200.constants, H200.core_mhz, H200.peak_w)
    calm, dram = (costs.at(one, 1500.0, 3201) for one in (CALM, DRAM))
    both = costs.at(Piece(((CALM, 2.0), (DRAM, 1.0))), 1500.0, 3201)
    assert both.duration_s == pytest.approx(2 * calm.duration_s + dram.duration_s)
    energy_j = 2 * calm.duration_s * calm.power_w(50.0) + dram.duration_s * dram.power_w(50.0)
    assert both.duration_s * both.power_w(50.0) == pytest.approx(energy_j)


def test_a_piece_has_the_sections_asked_for() -> None:
    step = workload("gpt3-125m")
    layers = [kernel for kernel in step.kernels if kernel.section == "Lf"]
    assert len(piece_of(H200, step.kernels, {"Lf": 3.0}).parts) == len(layers)
    assert {launches for _, launches in piece_of(H200, layers, {"Lf": 3.0}).parts} == {3.0}
    with pytest.raises(ValueError, match="has kernels"):
        piece_of(H200, step.kernels, {"elsewhere": 1.0})
    assert any(kernel.kind is Kind.GEMM for kernel in layers)


def test_a_board_stops_where_its_work_does_and_waits_as_told() -> None:
    board = Board(VirtualGpu(H200, seed=1), slowness=1.25)
    board.gpu.lock_core((1500, 1500))
    board.wait_until(1.0)
    idle_j = board.gpu.energy_j
    assert board.run(CALM)
    assert board.now_s - 1.0 == pytest.approx(1.25 * 30.0 / 1500.0, rel=2e-3)
    assert board.gpu.energy_j > idle_j
    assert not board.run(CALM, until_s=board.now_s + 0.01)
    with pytest.raises(ValueError, match=r"0\.0 times as slow"):
        Board(VirtualGpu(H200, seed=1), slowness=0.0)
    stopped_s = board.now_s
    board.wait_until(stopped_s - 0.5)
    assert board.now_s == stopped_s


@pytest.mark.untraced
def test_boards_spread_as_asked_and_alike_by_seed() -> None:
    slow = [board.slowness for board in boards_of(H200, 400, seed=3, spread=0.03)]
    assert 0.025 < sum((each - 1.0) ** 2 for each in slow) ** 0.5 / 20 < 0.035
    assert slow == [board.slowness for board in boards_of(H200, 400, seed=3, spread=0.03)]
    assert {board.gpu.number for board in boards_of(H200, 3, seed=3)} == {0}


def test_warm_air_warms_a_board_and_a_link_takes_its_time() -> None:
    cool, warm = (boards_of(H200, 1, seed=1)[0] for _ in range(2))
    warm.warm_air(20.0)
    for board in (cool, warm):
        board.wait_until(200.0)
    assert warm.gpu.temperature_c - cool.gpu.temperature_c == pytest.approx(20.0, abs=1.0)
    assert warm.gpu.energy_j > cool.gpu.energy_j
    assert Link(bytes_per_s=1e9, latency_s=1e-3).takes_s(2e6) == pytest.approx(3e-3)
