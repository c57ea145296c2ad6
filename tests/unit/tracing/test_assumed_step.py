"""A step traced without a GPU, by PyTorch on the CPU."""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from recorded import read
from underclock.app import main
from underclock.core.tracing.names import flops_of
from underclock.errors import UsageError
from underclock.records import Kind, Step
from underclock.records.work import module_calls
from underclock.runtime.trainer.sites import sites_of
from underclock.store import read_document
from underclock.tracing.held import trace
from underclock.tracing.source import StepFile, load_step

pytestmark = pytest.mark.slow

_ROOT = Path(__file__).parents[3]
_SCRIPT = """
import sys
import torch
sys.path.insert(0, {tests!r})
from small_training import Model, batches

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = batches()

def step():
    x, y = next(data)
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()

if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        step()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(_SCRIPT.format(tests=str(_ROOT / "tests")))
    return path


def _launches(step: Step) -> list[tuple[str, str]]:
    launches = [step.kernels[index].launch for index in step.order]
    return [(each.operator, each.shapes) for each in launches if each]


def test_a_gpt_step_has_the_products_that_an_h200_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(_ROOT / "studies" / "zoo"))
    recorded = read(_ROOT / "tests" / "data" / "traces" / "tiny.json.gz")

    step = trace(f"{_ROOT / 'studies/zoo/gpt.py'}:tiny", assume=True)

    def products(some: list[tuple[str, str, str]]) -> Counter[tuple[str, str, str]]:
        return Counter(each for each in some if flops_of(*each[:2]))

    assumed = [
        (*launch, str(step.kernels[index].pass_))
        for launch, index in zip(_launches(step), step.order, strict=True)
    ]
    seen = [(one.operator, one.shapes, str(one.pass_)) for one in recorded.seen]
    assert products(assumed) == products(seen)
    flops = sum(each.count * (each.flops or 0) for each in step.kernels if each.kind is Kind.GEMM)
    assert flops == sum(flops_of(*each[:2]) or 0 for each in seen)
    for operator in ("native_layer_norm", "_softmax", "gelu", "gelu_backward", "_fused_adamw_"):
        ran = {(kind, shapes) for kind, shapes, _ in seen if kind == f"aten::{operator}"}
        assert {name for name, _ in ran} <= {name for name, _, _ in assumed}


def test_a_function_is_left_as_it_was(script: Path) -> None:
    function = load_step(f"{script}:step")
    loaded = sys.modules["train"]
    before, drawn = [each.clone() for each in loaded.model.parameters()], torch.get_rng_state()

    step = trace(function, assume=True)

    assert step.is_assumed
    assert not loaded.optimizer.state
    assert all(group["foreach"] is None for group in loaded.optimizer.param_groups)
    for weight, kept in zip(loaded.model.parameters(), before, strict=True):
        assert weight.grad is None
        assert torch.equal(weight, kept)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_script_and_its_function_are_one_step_whose_modules_can_be_marked(
    script: Path,
) -> None:
    main(["trace", str(script), "--assume", "-o", "script.json", "--", "4"])
    main(["trace", f"{script}:step", "--assume", "-o", "function.json"])

    of_script = read_document(Path("script.json"), Step)
    of_function = read_document(Path("function.json"), Step)
    assert _launches(of_script) == _launches(of_function)
    assert of_script.modules == of_function.modules
    assert module_calls(of_script.modules[3]) is not None
    paths = {
        place.path
        for place in sites_of(
            of_script.modules, [of_script.kernels[index].pass_ for index in of_script.order]
        )
    }
    assert {"blocks.0", "blocks.1", "blocks.2"} <= {
        path.rpartition(".up")[0] or path for path in paths
    }


_SERVED = """
import torch

steps = 0
weight = torch.ones(8, 8)

def decode(batch=2, context=4):
    global steps
    steps += 1
    torch.ones(batch, context) @ torch.ones(context, 8) @ weight
"""


def test_a_function_is_traced_at_several_sizes_and_run_again_at_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("serve.py").write_text(_SERVED)
    main(
        [
            "trace",
            "serve.py:decode",
            "--assume",
            "--grid",
            "batch=1,2",
            "context=1k,4",
            "-o",
            "family",
        ]
    )

    names = ["decode-b1-c1024", "decode-b1-c4", "decode-b2-c1024", "decode-b2-c4"]
    assert sorted(path.stem for path in Path("family").iterdir()) == names
    steps = [read_document(Path(f"family/{name}.json"), Step) for name in names]
    assert [step.name for step in steps] == names
    shapes = [sorted(shapes for _, shapes in _launches(step)) for step in steps]
    assert len({tuple(each) for each in shapes}) == len(names)
    source = steps[0].source
    assert source is not None
    assert str(source) == "../serve.py:decode --size batch=1 --size context=1024"
    assert "kernels run at more than one of these sizes" in capsys.readouterr().out

    again = StepFile(folder=tmp_path / "family", named="serve.py:decode").load(source)
    assert callable(again)
    seen = trace(again, assume=True)
    assert (seen.name, seen.kernels) == (steps[0].name, steps[0].kernels)
    assert sys.modules["serve"].steps == 0, "what the function counts is as it was"


def test_sizes_that_a_function_does_not_take_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("serve.py").write_text(_SERVED)
    with pytest.raises(UsageError, match="decode takes no 'contest'") as caught:
        trace("serve.py:decode", assume=True, contest=3)
    assert "did you mean 'context'" in (caught.value.hint or "")
