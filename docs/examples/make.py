"""Makes the tables of this folder anew: ``python docs/examples/make.py``.

``sweep.csv`` and ``repeats.csv`` hold what a simulated RTX 3080 Ti says of four kernels of GPT-3
XL's step, each measured alone; ``stages.csv`` what a simulated A100 says of forward and backward of
four stages of that model, six layers each, as sums of their kernels.
"""

import csv
import io
import tempfile
from pathlib import Path

import underclock
from underclock.campaign.grid import Campaign
from underclock.records import MeasurementSettings, Pass, SampleSet

_HERE = Path(__file__).parent
_KERNELS = ("qkv", "softmax_forward_kernel5", "gelu_forward_kernel2", "fc wgrad")
_CORES, _MEMORIES = (600, 900, 1200, 1500, 1800, None), (5001, 9251, None)
_TABLES = {"sweep.csv": 1, "repeats.csv": 5}  # and how often each row was run


def table(repeats: int) -> str:
    """Return a table as text.

    Args:
        repeats: Of each row.
    """
    whole = underclock.trace("gpt3-xl", batch=8)
    kernels = tuple(each for each in whole.kernels if each.name in _KERNELS)
    order = tuple(at for at, each in enumerate(kernels) for _ in range(each.count))
    step = underclock.Step(name="four kernels", kernels=kernels, order=order)
    campaign = Campaign(core_mhz=_CORES, mem_mhz=_MEMORIES, repeats=repeats, in_situ=False)
    with tempfile.TemporaryDirectory() as folder:
        return _text(
            underclock.measure(
                step,
                gpu="sim:rtx3080ti",
                to=Path(folder) / "samples.db",
                campaign=campaign,
                measuring=MeasurementSettings(kernel_warm_s=0.5, window_s=2.0),
            )
        )


_FIRST = {"encoder_forward_kernel3", "wpe_backward_kernel", "wte_backward_kernel"}
_LAST = ("lm_head", "fused_classifier_kernel5", "layernorm_backward_kernel10 (lnf)")
_STAGES = 4
_STAGE_CORES = tuple(range(690, 1411, 90))


def stages() -> str:
    """Return what instructions of a pipeline cost, as `underclock job` takes it."""
    step = underclock.trace("gpt3-xl", batch=8, layers=24 // _STAGES)
    campaign = Campaign(core_mhz=_STAGE_CORES, mem_mhz=(None,), in_situ=False)
    with tempfile.TemporaryDirectory() as folder:
        samples = underclock.measure(
            step,
            gpu="sim:a100",
            to=Path(folder) / "samples.db",
            campaign=campaign,
            measuring=MeasurementSettings(kernel_warm_s=0.5, window_s=1.0),
        )
    known = {each.name: each for each in samples.kernels}
    sums: dict[tuple[int, str, int], tuple[float, float]] = {}
    for window in samples.samples:
        kernel, mhz = known[window.kernel], window.asked.core_mhz
        if mhz is None or kernel.pass_ not in {Pass.FORWARD, Pass.BACKWARD}:
            continue
        for stage in range(_STAGES):
            if (kernel.name in _FIRST and stage) or (
                kernel.name.startswith(_LAST) and stage < _STAGES - 1
            ):
                continue
            time_s, energy_j = sums.get((stage, kernel.pass_, mhz), (0.0, 0.0))
            sums[stage, kernel.pass_, mhz] = (
                time_s + kernel.count * window.time_s,
                energy_j + kernel.count * window.energy_j,
            )
    rows = [
        f"{stage},{pass_},{mhz},{time_s:.6g},{energy_j:.6g}"
        for (stage, pass_, mhz), (time_s, energy_j) in sorted(sums.items())
    ]
    return "\n".join(["stage,instruction,frequency,time,energy", *rows]) + "\n"


def _text(samples: SampleSet) -> str:
    known = {each.name: each for each in samples.kernels}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            *("gpu", "kernel", "pass", "count", "core_mhz", "mem_mhz"),
            *("time_s", "energy_j", "power_w", "temperature_c", "evidence"),
        ]
    )
    for sample in samples.samples:
        kernel = known[sample.kernel]
        numbers = (
            sample.time_s,
            sample.energy_j,
            sample.energy_j / sample.time_s,
            sample.temperature_c,
        )
        writer.writerow(
            [
                "RTX 3080 Ti (simulated)",
                kernel.name,
                kernel.pass_,
                kernel.count,
                sample.asked.core_mhz or "",
                sample.asked.mem_mhz or "",
                *(f"{number:.6g}" for number in numbers if number is not None),
                samples.evidence,
            ]
        )
    return text.getvalue()


if __name__ == "__main__":
    for name, repeats in _TABLES.items():
        (_HERE / name).write_text(table(repeats))
    (_HERE / "stages.csv").write_text(stages())
