"""A prior that knows when it is off: a GPU unlike the usual widens it, and is said to be so."""

import dataclasses
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

import underclock
from made_rows import every_clock, made_rows
from underclock.arrays import Floats
from underclock.core.model.hierarchical_prior import (
    KernelKind,
    kernel_kind,
    typical,
    usual_shares,
    widening,
)
from underclock.core.model.most_likely import FittedModel, fit_all, fitted, prior_doubt
from underclock.core.model.parameters import (
    PER_KERNEL,
    WORK,
    Parameters,
    Rows,
    Shared,
    predicted_rows,
    unknown_gpu,
)
from underclock.core.tracing.names import kind_of
from underclock.records import Kernel, Launch, SampleSet

_MEMS = (5001.0, 9501.0)
_FAMILY = Shared(unknown_gpu(_MEMS, fastest_mhz=2100.0, most_w=350.0))
_UNITS = np.array([math.log(2100.0), math.log(9501.0), 0.0, math.log(150.0)])
_CORES = np.linspace(450.0, 2100.0, 6).round()
_KERNELS = 8


def _rows(off: Floats) -> Rows:
    """Return noisy rows of kernels on a GPU that is off the prior by so many deviations."""
    random = np.random.default_rng(5)
    own = np.log(random.uniform(0.1, 1.0, (_KERNELS, PER_KERNEL))) + _UNITS
    own[:, 2] -= 3.0
    parameters = Parameters(
        family=_FAMILY, shared=_FAMILY.start() + off * _FAMILY.spread(), kernels=own - 7.0
    )
    at = every_clock(_KERNELS, _CORES, _MEMS, 55.0)
    log = predicted_rows(parameters, at).log
    return made_rows(at, log + random.normal(0.0, 0.004, log.shape), _MEMS)


def _off(size: float) -> Floats:
    signs = np.where(np.arange(len(_FAMILY.start())) % 2, 1.0, -1.0)
    off = size * signs
    off[0] = 0.5  # an exponent below 1 is no norm
    return off


@pytest.fixture(scope="module")
def strange() -> FittedModel:
    """Fit a GPU whose constants lie three deviations off."""
    return fit_all(_rows(_off(3.0)), _FAMILY)


def test_a_gpu_far_from_the_usual_widens_the_prior_and_is_said_to_be_so(
    strange: FittedModel,
) -> None:
    (sentence,) = prior_doubt(strange)

    assert 1.5 < strange.shared_scale < 4.0
    assert f"{strange.shared_scale:.1f} times further" in sentence
    assert "usually about" in sentence


def test_what_rows_do_not_tell_of_a_strange_gpu_is_less_sure(strange: FittedModel) -> None:
    usual = fit_all(_rows(_off(0.7)), _FAMILY)

    assert usual.shared_scale == 1.0
    assert prior_doubt(usual) == ()
    spread = [np.diag(model.prior.shared_root) for model in (usual, strange)]
    assert spread[1] == pytest.approx(strange.shared_scale * spread[0])


def test_kernels_fitted_to_a_known_gpu_know_how_strange_it_is() -> None:
    rows = _rows(_off(3.0))

    model = fitted(rows, _FAMILY, most_kernels=6)

    assert len(model.rows.names) == _KERNELS
    assert model.shared_scale > 1.5


@pytest.mark.parametrize(
    ("away2", "left", "expected"),
    [
        ([0.0] * 12, [1.0] * 12, 1.0),  # nothing is told
        ([0.5] * 12, [0.0] * 12, 1.0),  # all is told, and as usual
        ([9.0] * 12, [0.0] * 12, math.sqrt((4 + 108) / 16)),
        ([9.0] * 6 + [0.0] * 6, [0.0] * 6 + [1.0] * 6, math.sqrt((4 + 54) / 10)),
        ([1e6] * 12, [0.0] * 12, 10.0),
    ],
)
def test_a_prior_is_widened_by_what_is_told(
    away2: list[float], left: list[float], expected: float
) -> None:
    assert widening(np.array(away2), np.array(left)) == pytest.approx(expected)


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


def test_kernels_of_a_real_step_and_of_a_workload_have_kinds() -> None:
    file = Path(__file__).parents[4] / "docs/evidence/h200/steered-layer-1.json"
    layer = msgspec.json.decode(file.read_bytes(), type=SampleSet).kernels
    for kernels, expected in (
        (layer, [18, 0, 5, 13, 4, 3, 9]),
        (underclock.trace("llama3-8b-decode").kernels, [5, 1, 3, 1, 1, 0, 2]),
        (underclock.trace("gpt3-125m").kernels[-1:], [0, 0, 0, 0, 0, 1, 0]),
    ):
        kinds = [kernel_kind(kernel) for kernel in kernels]
        assert [kinds.count(kind) for kind in KernelKind] == expected


def test_a_kernel_with_one_row_is_expected_to_draw_as_its_kind_does() -> None:
    mean, spread = shares = usual_shares([None, *KernelKind])
    assert (shares[:, 1:, :WORK] == shares[:, :1, :WORK]).all()  # of time, kinds have none
    assert (np.abs(mean[1:, WORK] - mean[0, WORK]) < spread[0, WORK]).all()
    assert (spread[1:, WORK] < spread[0, WORK]).all()

    at = every_clock(len(mean), _CORES[-1:], _MEMS[-1:], 55.0)
    rows = made_rows(at, np.log(np.tile([[1e-3], [200.0]], len(mean))), _MEMS)
    rows = dataclasses.replace(rows, shares=shares).of(np.arange(1, len(mean)))
    prior = typical(rows, _FAMILY.base)
    drawn = fit_all(rows, _FAMILY).parameters.kernels[:, WORK]

    assert (prior.mean - prior.unit)[:, WORK] == pytest.approx(mean[1:, WORK])
    assert (np.argsort(drawn) == np.argsort(mean[1:, WORK])).all()  # of the same row
