from functools import partial

import pytest
import torch
import torch._inductor.config
from torch._dynamo.utils import counters

from vit.objectives import MultilabelClassifier, ViTClassifier
from vit.training.compilation import blocks_of, compile_for_training

SIZES = {"image_size": 12, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 2, "num_classes": 3}
BATCH = torch.arange(2 * 3 * 12 * 12, dtype=torch.uint8).reshape(2, 3, 12, 12), torch.tensor([0, 2])


@pytest.fixture(params=[ViTClassifier])
def compiled(request, monkeypatch):
    """A classifier that is compiled without a C++ compiler, and counts its programs from zero."""
    monkeypatch.setattr("torch.compile", partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()
    classifier = request.param(compile=True, patch_drop=0.5, **SIZES)
    classifier.configure_model()
    counters.clear()  # of the small function that is compiled first
    yield classifier
    torch._dynamo.reset()


def programs():
    """Number of the programs that were compiled so far."""
    return counters["stats"]["unique_graphs"]


def test_a_step_on_a_cpu_is_one_program(compiled):
    compiled.training_loss(BATCH)
    assert programs() == 1
    assert not counters["graph_break"]


def test_each_number_of_tokens_has_a_program(compiled):
    for rate in (0.5, 0.0, 0.5, 0.0):
        compiled.network.patch_drop.rate = rate
        compiled.training_loss(BATCH)
    assert programs() == 2
    images, labels = BATCH
    compiled.training_loss((images[:1], labels[:1]))  # no program of any size
    assert programs() == 3


def test_the_gradient_of_a_compiled_step_is_that_of_the_equation(compiled):
    compiled.network.patch_drop.rate = 0.0
    compiled.training_loss(BATCH).backward()
    of_program = [weight.grad.clone() for weight in compiled.parameters()]
    assert programs() == 1
    compiled.zero_grad()
    with torch.compiler.set_stance("force_eager"):
        compiled.training_loss(BATCH).backward()
    for ours, weight in zip(of_program, compiled.parameters(), strict=True):
        torch.testing.assert_close(ours, weight.grad)


@pytest.mark.parametrize("compiled", [ViTClassifier, MultilabelClassifier], indirect=True)
@pytest.mark.parametrize("step", ["validation_step", "test_step", "predict_step"])
def test_evaluation_and_prediction_compile_nothing(compiled, step):
    compiled.eval().evaluation = compiled.new_evaluation()
    images, labels = BATCH
    labels = labels if type(compiled) is ViTClassifier else torch.eye(3)[labels]
    with torch.no_grad():
        getattr(compiled, step)((images, ["a", "b"], []) if step == "predict_step" else (images, labels), 0)
    assert programs() == 0


def test_blocks_share_a_program_where_they_are_compiled_one_by_one(monkeypatch):
    network = ViTClassifier(**SIZES).network
    compile_for_training(network, torch.device("cuda"))
    assert network._compiled_call_impl is None
    assert all(block._compiled_call_impl is not None for block in blocks_of(network))


def test_a_second_call_compiles_nothing_anew_and_says_nothing(compiled, capsys):
    before = compiled.network._compiled_call_impl
    compiled.configure_model()
    assert compiled.network._compiled_call_impl is before
    assert not capsys.readouterr().out


def test_a_machine_without_a_compiler_trains_uncompiled_and_says_so(capsys):
    network = ViTClassifier(**SIZES).network
    with torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler")}):
        compile_for_training(network, torch.device("cpu"))
    assert network._compiled_call_impl is None
    assert capsys.readouterr().out.startswith(
        "the training is not compiled, so its steps take longer: torch's compiler needs a C++ compiler"
    )


def test_a_compiler_that_fails_is_told_and_the_network_stays_as_it_is(monkeypatch, capsys):
    def failing(function, **_):
        def call(*_):
            raise RuntimeError("C++ compile error\nx.cpp:1:10: fatal error: Python.h: No such file or directory")

        return call

    monkeypatch.setattr("torch.compile", failing)
    network = ViTClassifier(**SIZES).network
    compile_for_training(network, torch.device("cpu"))
    assert network._compiled_call_impl is None
    assert capsys.readouterr().out == (
        "the training is not compiled, so its steps take longer: torch.compile fails on this machine "
        "(x.cpp:1:10: fatal error: Python.h: No such file or directory): repair the compiler, or add "
        "--model.compile false\n"
    )
