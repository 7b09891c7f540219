"""All images of an analysis pass the same layers."""

import pytest
import torch
from torch import nn

from vit.analysis import ablation_importance, attribute_edges, cut_edges, cut_heads, cut_layers, head_importance


class LeavingEarly(nn.Module):
    """A model that ends after its first block if all images of a batch are bright."""

    def __init__(self, vit):
        super().__init__()
        self.vit = vit

    def forward(self, images):
        tokens = self.vit.embed(images)
        for number, block in enumerate(self.vit.blocks):
            tokens = block(tokens, (3, 5))
            if number == 0 and (images.mean(dim=(1, 2, 3)) > 0.5).all():
                break
        return self.vit.forward_head(self.vit.norm(tokens))


@pytest.mark.parametrize("bright", [0, 1])
@pytest.mark.parametrize(
    "analysis", [head_importance, ablation_importance, cut_heads, cut_layers, cut_edges, attribute_edges]
)
def test_images_that_leave_early_are_refused(ours, analysis, bright):
    images = 0.1 * torch.randn(3, 3, 12, 20, generator=torch.Generator().manual_seed(0))
    images[bright] += 1
    with pytest.raises(ValueError, match=r"has \d attentions for a batch of \d images and \d for the first"):
        analysis(LeavingEarly(ours).eval(), images, batch_size=1)
