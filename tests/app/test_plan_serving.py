"""``underclock plan`` of a server's steps: samples in, the governor's table out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from underclock import Campaign, ServingPlan, load, measure, plan_serving, trace
from underclock.app import main
from underclock.errors import DataError
from underclock.hw.measurer import BRISK
from underclock.records import ALONE, Pass, SampleSet
from underclock.records.serving import Basis
from underclock.runtime.controller.governor import Governor, Note
from underclock.runtime.trainer.notes import BEGIN
from windows import with_step

STEPS = ("decode-b1-c1024", "decode-b8-c1024", "prefill-b1-c512")
CORES = (1500, 1800, None)
HASTY = msgspec.structs.replace(BRISK, warm_s=1.0, steady_s=1.0, window_s=0.5, launches=2)


def sampled(path: Path, name: str) -> None:
    phase, batch, context = name.split("-")
    campaign = Campaign(core_mhz=CORES, mem_mhz=(None,))
    step = trace(f"llama3-8b-{phase}", batch=int(batch[1:]), context=int(context[1:]), layers=2)
    measure(step, gpu="sim:h200", to=path, campaign=campaign, measuring=HASTY)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("family")
    for name in STEPS:
        sampled(folder / f"{name}.db", name)
    return folder


@pytest.fixture(scope="module")
def samples(family: Path) -> list[SampleSet]:
    found = [load(family / f"{name}.db") for name in STEPS]
    return [each for each in found if isinstance(each, SampleSet)]


def renamed(samples: SampleSet, **changes: Any) -> SampleSet:
    return msgspec.structs.replace(samples, **changes)


def test_a_folder_of_samples_becomes_a_table_that_a_governor_holds(
    family: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "serving.json"
    main(f"plan-server {family} --max-slowdown 40% --tpot 5ms -o {to}".split())
    said = capsys.readouterr().out
    made = load(to)

    assert isinstance(made, ServingPlan)
    assert (made.workload, made.max_slowdown, made.tpot_s) == ("llama3-8b", 0.4, 5e-3)
    places = [(each.pass_, each.batch, each.context, each.tokens) for each in made.buckets]
    assert places == [
        (Pass.DECODE, 1, 1024, 1),
        (Pass.DECODE, 8, 1024, 8),
        (Pass.PREFILL, 1, 512, 512),
    ]
    for bucket in made.buckets:
        assert bucket.chosen.time_interval_s[1] <= 1.4 * bucket.auto.time_s
        assert bucket.energy_change <= 0.0
        assert len(bucket.frontier) > 1
    small = made.buckets[0]
    assert small.chosen.clocks.core_mhz in CORES
    assert small.chosen.basis is Basis.MEASURED
    assert made.fixed is not None
    assert small.fixed is not None
    assert small.fixed.clocks == made.fixed
    assert len(said.splitlines()) <= 13
    assert "decode 8 x 1024" in said
    assert "one clock for all" in said

    governor = Governor(made, latency_s=6e-3)
    governor.noted(Note(BEGIN, Pass.DECODE, 1, 900), 0.0)
    assert governor.ask(1.0) == small.chosen.clocks


def test_a_budget_that_nothing_keeps_says_which_would(
    family: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(f"plan-server {family} --tpot 1us --tail 5%".split())
    said = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 6
    assert "decode 1 x 1024: no clocks keep tpot 1 µs:" in said
    assert "at p99" in said


def _of_pass(samples: SampleSet, first: Pass, *rest: Pass) -> SampleSet:
    """Return samples of a step whose first kernel, or all of them, are of another pass."""
    kernels = tuple(
        msgspec.structs.replace(kernel, pass_=(rest or (kernel.pass_,))[0] if k else first)
        for k, kernel in enumerate(samples.kernels)
    )
    return with_step(samples, kernels=kernels)


Family = list[SampleSet]
_REFUSED: list[tuple[Callable[[Family], Family], str, str]] = [
    (lambda f: [*f, f[0]], "both of decode at batch 1, context 1024", "leave one"),
    (
        lambda f: [*f, with_step(f[0], order=f[0].order[::-1])],
        "both of decode",
        "shapes change within its batch",
    ),
    (
        lambda f: [f[0], with_step(f[1], name="llama3-70b-decode-b8-c1024")],
        "unlike models: llama3-8b and llama3-70b",
        "",
    ),
    (
        lambda f: [f[0], renamed(f[1], gpu=msgspec.structs.replace(f[1].gpu, name="A100"))],
        "unlike GPUs: H200 and A100",
        "",
    ),
    (
        lambda f: [with_step(f[0], name="llama-decode")],
        "does not say its batch and context",
        "serve-decode-b8-c1024",
    ),
    (lambda f: [_of_pass(f[0], Pass.DECODE, Pass.PREFILL)], "how many tokens", ""),
    (
        lambda f: [
            renamed(f[0], windows=tuple(w for w in f[0].windows if w.kernel and w.mix == ALONE))
        ],
        "never ran whole",
        "",
    ),
    (lambda f: [_of_pass(f[0], Pass.BACKWARD)], "no step of a server", ""),
]


@pytest.mark.parametrize(("changed", "words", "hint"), _REFUSED)
def test_families_that_make_no_table_are_refused(
    changed: Callable[[Family], Family], words: str, hint: str, samples: Family
) -> None:
    with pytest.raises(DataError, match=words) as caught:
        plan_serving(changed(samples))
    assert hint in caught.value.hint
