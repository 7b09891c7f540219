"""The sweep over architectures: what it reads, refuses and finds wrong."""

import any_vit
import pytest
import torch
from any_vit import ARCHITECTURES, check, report

READ = {
    "ours": ["class token", "differential"],
    "timm": ["ViT, not square", "ViT, attention pooling", "ViT, ResNet stem", "BEiT", "CaiT, one class layer"],
    "transformers": ["ViT", "SigLIP"],
    "torchvision": ["ViT"],
    "vit-pytorch": ["CaiT", "DeepViT", "CCT", "RvT", "SimpleViT, Fourier"],
}
REFUSED = {
    "ours": {"linear": "never forms the matrix of attention weights"},
    "timm": {
        "ViT, parallel branches": "attentions side by side",
        "ViT, maximum": "reads other tokens for each image",
        "XCiT": "2 of one query",
        "ConViT": "to other tokens in some layers",
    },
    "transformers": {"Swin": "attends within windows"},
    "vit-pytorch": {"XCiT": "move no grid of patches", "Parallel ViT": "attentions side by side"},
}


def test_there_are_one_hundred_and_thirty_architectures_and_more():
    assert sum(map(len, ARCHITECTURES.values())) >= 130


@pytest.mark.filterwarnings("ignore:attention has negative weights")
@pytest.mark.parametrize(("library", "name"), [(library, name) for library in READ for name in READ[library]])
def test_a_model_is_read_with_all_patches_in_order_and_the_attention_of_its_library(library, name):
    row = check(library, name, *ARCHITECTURES[library][name])
    assert row["result"] == "read"
    assert row["order"] in (4, 15, 16)
    assert row.get("attention", 0.0) < 1e-6


@pytest.mark.parametrize(("library", "name"), [(library, name) for library in REFUSED for name in REFUSED[library]])
def test_a_model_is_refused_with_its_reason(library, name):
    row = check(library, name, *ARCHITECTURES[library][name])
    assert row["result"] == "refused"
    assert REFUSED[library][name] in row["reason"]


def test_captured_weights_that_differ_from_those_of_the_library_are_wrong(monkeypatch):
    capture = any_vit.capture_attention
    monkeypatch.setattr(any_vit, "capture_attention", lambda *inputs: [x + 1e-5 for x in capture(*inputs)])
    row = check("timm", "ViT", *ARCHITECTURES["timm"]["ViT"])
    assert (row["result"], row["reason"]) == ("wrong", "captured attention differs by 1e-05")


def test_patches_in_another_order_are_wrong(monkeypatch):
    examine = any_vit.examine
    monkeypatch.setattr(any_vit, "examine", lambda *inputs: _shifted(examine(*inputs)))
    row = check("timm", "ViT", *ARCHITECTURES["timm"]["ViT"])
    assert row["result"] == "wrong"
    assert row["reason"] == "the pixels of patch 0 move token 1 of the patches most"


def _shifted(anatomy):
    object.__setattr__(anatomy, "num_prefix_tokens", 0)
    return anatomy


def test_the_report_counts_the_rows_and_shows_both_tables():
    rows = [
        check(library, name, *ARCHITECTURES[library][name]) for library, name in (("ours", "mean"), ("ours", "linear"))
    ]
    page = report(rows)
    assert "1 are read, 1 are refused with a reason, 0 are wrong" in page
    assert page.index("| ours    | mean") < page.index("## Refused") < page.index("| ours    | linear")
    assert torch.is_grad_enabled()
