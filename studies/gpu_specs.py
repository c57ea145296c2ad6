"""What is published of GPUs, from `gpu_specs.toml`: where a calibration begins."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from underclock.gpus.models import GpuModel


def _models() -> Iterator[tuple[str, GpuModel]]:
    published = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    for name, model in published.items():
        if "core_steps" in model:
            first, last, step = model.pop("core_steps")
            model["core_mhz"] = range(first, last + 1, step)
        if "like" in model:
            model["constants"] = published[model.pop("like")]["constants"] | model["constants"]
        yield name, msgspec.convert(model | {"core_mhz": tuple(model["core_mhz"])}, GpuModel)


SPECS = dict(_models())
