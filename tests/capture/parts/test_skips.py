"""Tokens that are no longer those of their patches: no map draws them where the patches are."""

import pytest
import torch

from tests.capture.test_invented_models import IMAGES, invented
from vit.explain import explain


@pytest.mark.parametrize("method", ["attention", "value", "gradcam", "legrad"])
@pytest.mark.parametrize("count", [1, 8])
def test_patches_whose_tokens_are_replaced_are_not_drawn(method, count):
    def run(model, images):
        def step(number, layer, tokens):
            if number == 1:
                tokens = torch.cat([tokens[:, :-count], model.positions[:, -count:].expand(len(tokens), -1, -1)], dim=1)
            return layer(tokens)

        return model.read(model.through(model.embed(images), step))

    with pytest.raises(ValueError, match="tokens hold what attention brought there, or what replaced them"):
        explain(invented(run=run), IMAGES, method)
