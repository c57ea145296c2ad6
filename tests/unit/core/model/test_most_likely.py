"""The model's derivatives, and the fit: what it recovers and what leaves it unchanged."""

import dataclasses
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_rows import every_clock, made_rows
from underclock.arrays import Floats
from underclock.core.model.hierarchical_prior import (
    kernel_kind,
)
from underclock.core.model.most_likely import FittedModel, fit_all, fitted
from underclock.core.model.parameters import (
    PER_KERNEL,
    Parameters,
    Rows,
    Shared,
    predicted_rows,
    unknown_gpu,
)
from underclock.core.tracing.names import kind_of
from underclock.physics.constants import KernelConstants
from underclock.physics.costs import busy_w, duration_s
from underclock.records import Kernel, Launch

_MEMS = (810.0, 5001.0, 9501.0)
_FAMILY = Shared(unknown_gpu(_MEMS, fastest_mhz=2100.0, most_w=350.0))
_UNITS = np.array([math.log(2100.0), math.log(9501.0), 0.0, math.log(150.0)])


@dataclasses.dataclass(frozen=True)
class _Truth:
    parameters: Parameters
    rows: Rows


def _truth(
    kernels: int, seed: int, *, cores: int = 8, noise: tuple[float, float] = (0.003, 0.008)
) -> _Truth:
    """Draw a GPU, kernels, and noisy rows of them on a grid of clocks."""
    random = np.random.default_rng(seed)
    start = _FAMILY.start()
    shared = start + np.clip(random.normal(0.0, 0.5, len(start)), -1, 1) * _FAMILY.spread()
    own = np.log(random.uniform(0.05, 1.0, (kernels, PER_KERNEL))) + _UNITS
    own += random.normal(-7.0, 1.0, (kernels, 1))
    own[:, 2] -= 3.0
    at = every_clock(kernels, np.linspace(450.0, 2100.0, cores).round(), _MEMS, 0.0)
    at = dataclasses.replace(at, temperature_c=random.uniform(45.0, 65.0, len(at.kernel)))
    parameters = Parameters(family=_FAMILY, shared=shared, kernels=own)
    log = predicted_rows(parameters, at).log
    rows = made_rows(at, log + random.normal(0.0, 1.0, log.shape) * np.array(noise)[:, None], _MEMS)
    return _Truth(
        parameters, dataclasses.replace(rows, kinds=(np.arange(kernels) % 2).astype(np.int64))
    )


@pytest.fixture(scope="module")
def truth() -> _Truth:
    return _truth(12, 0)


@pytest.fixture(scope="module")
def model(truth: _Truth) -> FittedModel:
    return fit_all(truth.rows, _FAMILY)


def test_the_model_is_that_of_the_simulator(truth: _Truth) -> None:
    log = predicted_rows(truth.parameters, truth.rows).log
    gpu = _FAMILY.gpu(truth.parameters.shared)
    dram_j, per_dram = np.exp(truth.parameters.shared[[8, 9]])
    for k, (core, dram, fixed, work) in enumerate(np.exp(truth.parameters.kernels).tolist()):
        mine = truth.rows.kernel == k
        kernel = KernelConstants(
            core_mcycles=core,
            dram_mcycles=dram,
            xbar_mcycles=per_dram * dram,
            fixed_s=fixed,
            work_j_per_v2=work,
            dram_j=dram_j * dram,
        )
        where = truth.rows.core_mhz[mine], truth.rows.mem_mhz[mine]
        warm = truth.rows.temperature_c[mine]
        assert np.exp(log[0, mine]) == pytest.approx(duration_s(gpu, kernel, *where))
        assert np.exp(log[1, mine]) == pytest.approx(busy_w(gpu, kernel, *where, warm))


@pytest.mark.untraced
@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_derivatives_are_those_of_finite_differences(seed: int) -> None:
    truth = _truth(3, seed, cores=4)
    at = truth.rows
    prediction = predicted_rows(truth.parameters, at)
    step = 1e-5
    for name, by in (("kernels", prediction.by_kernel()), ("shared", prediction.by_shared())):
        vectors = getattr(truth.parameters, name)
        for p in range(vectors.shape[-1]):
            ends = []
            for sign in (1.0, -1.0):
                moved = vectors.copy()
                moved[..., p] += sign * step
                ends.append(
                    predicted_rows(dataclasses.replace(truth.parameters, **{name: moved}), at).log
                )
            # A clock just at a knee has two slopes; differences to one side see one of them.
            off = 1e-5 if name == "kernels" else 5e-3
            assert by[:, :, p] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=off)


def _log(parameters: Parameters, truth: _Truth) -> Floats:
    """Return what parameters say of the rows. Shape (2, R)."""
    return predicted_rows(parameters, truth.rows).log


def test_a_fit_finds_what_lies_behind_the_noise(truth: _Truth, model: FittedModel) -> None:
    log, fitted_log = _log(truth.parameters, truth), _log(model.parameters, truth)

    assert (np.abs(fitted_log - log).mean(axis=1) < [0.002, 0.005]).all()


_TWO_MEMS = (5001.0, 9501.0)
_USUAL = Shared(unknown_gpu(_TWO_MEMS, fastest_mhz=2100.0, most_w=350.0))
_CORES = np.linspace(450.0, 2100.0, 6).round()
_KERNELS = 8


def _rows(off: Floats) -> Rows:
    """Return noisy rows of kernels on a GPU that is off the prior by so many deviations."""
    random = np.random.default_rng(5)
    own = np.log(random.uniform(0.1, 1.0, (_KERNELS, PER_KERNEL))) + _UNITS
    own[:, 2] -= 3.0
    parameters = Parameters(
        family=_USUAL, shared=_USUAL.start() + off * _USUAL.spread(), kernels=own - 7.0
    )
    at = every_clock(_KERNELS, _CORES, _TWO_MEMS, 55.0)
    log = predicted_rows(parameters, at).log
    return made_rows(at, log + random.normal(0.0, 0.004, log.shape), _TWO_MEMS)


def _off(size: float) -> Floats:
    off = size * np.where(np.arange(len(_USUAL.start())) % 2, 1.0, -1.0)
    off[0] = 0.5  # an exponent below 1 is no norm
    return off


@pytest.fixture(scope="module")
def strange() -> FittedModel:
    """Fit a GPU whose constants lie three deviations off."""
    return fit_all(_rows(_off(3.0)), _USUAL)


def _wider(model: FittedModel) -> Floats:
    """Return by how much wider than usual the prior of shared parameters is. Shape (S,)."""
    wider: Floats = np.sqrt((model.prior.shared_root**2).sum(axis=1)) / _USUAL.spread()
    return wider


def test_a_gpu_far_from_the_usual_widens_the_prior(strange: FittedModel) -> None:
    assert (_wider(strange) > 1.5).all()
    assert (_wider(strange) < 4.0).all()


_REAL = {  # operators and functions of H200s' traces, and what other libraries call theirs
    "product": "aten::addmm nvjet_sm90_192x192_bias_TNN; aten::bmm Kernel2; aten::x gemm_splitK",
    "attention": "aten::_cudnn_attention_forward native_sdpa; flash_fwd_kernel; aten::x fmha_mm",
    "norm": "aten::_softmax softmax_warp_forward; aten::native_layer_norm_backward GammaBeta; "
    "aten::_fused_rms_norm vectorized_layer_norm_kernel; triton_per_fused_native_layer_norm_0",
    "elementwise": "aten::masked_fill_ elementwise_kernel; aten::gelu fast; triton_poi_fused_add",
    "reduction": "aten::sum reduce_kernel; aten::mm splitKreduce_kernel; triton_red_fused_sum_1; "
    "aten::linalg_vector_norm reduce_kernel; aten::nll_loss_forward nll_loss_forward_reduce",
    "optimizer": "aten::_fused_adamw_ multi_tensor_apply_kernel; aten::_foreach_add_ multi_tensor",
    "copy": "aten::copy_ unrolled_elementwise_kernel; aten::cat CatArrayBatchedCopy; memset; "
    "aten::embedding_dense_backward sum_and_scatter; aten::fill_ elementwise_kernel",
}


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, some in _REAL.items() for name in some.split("; ")]
)
def test_a_kernel_is_told_by_its_operator_and_function(kind: str, name: str) -> None:
    operator, _, function = name.rpartition(" ")
    launch = Launch(function=f"void at::{function}<8>(int)", operator=operator, identity="0")
    kernel = Kernel(name="attention norm", kind=kind_of(operator, function), launch=launch)
    assert kernel_kind(kernel) == kind
    assert kernel_kind(msgspec.structs.replace(kernel, kind=None)) is None


def test_kernels_fitted_to_a_known_gpu_know_how_strange_it_is() -> None:
    rows = _rows(_off(3.0))

    model = fitted(rows, _USUAL, most_kernels=6)

    assert len(model.rows.names) == _KERNELS
    assert (_wider(model) > 1.5).all()
