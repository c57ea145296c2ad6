"""A simulated GPU for every test here, and a step for it."""

from collections.abc import Iterator

import pytest

from underclock.hw.simulated.driver import Rig, simulated_rig
from underclock.records import Kernel, Step
from underclock.workloads import workload


@pytest.fixture
def rig() -> Iterator[Rig]:
    with simulated_rig("rtx3080ti") as made:
        yield made


@pytest.fixture(scope="session")
def step() -> Step:
    return workload("gpt3-xl", {"layers": 2})


@pytest.fixture(scope="session")
def gemm(step: Step) -> Kernel:
    return next(kernel for kernel in step.kernels if kernel.name == "qkv")


@pytest.fixture(scope="session")
def elementwise(step: Step) -> Kernel:
    return next(kernel for kernel in step.kernels if kernel.name == "gelu_forward_kernel2")
