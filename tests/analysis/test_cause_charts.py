import pytest
import torch

from vit.analysis import cause_charts
from vit.analysis.measures import effective_rank


def spectra(tokens, sharpness):
    values = torch.rand(2, 3, 5, tokens, generator=torch.Generator().manual_seed(0)) ** sharpness
    values = values.sort(dim=-1, descending=True).values
    return list(values / values.sum(dim=-1, keepdim=True))


def test_spectra_of_attention_stand_beside_those_before_training(drawn):
    trained, untrained = spectra(7, 1), spectra(7, 9)
    shares, ranks = drawn(cause_charts.draw_attention_spectra, trained, untrained).axes
    for layers, line, rank in zip((trained, untrained), shares.lines, ranks.lines, strict=True):
        mean = torch.stack(layers).mean(dim=(0, 1, 2))
        assert list(line.get_ydata()) == pytest.approx([0, *(100 * mean.cumsum(0)).tolist()], rel=1e-5)
        assert list(rank.get_ydata()) == pytest.approx([effective_rank(layer).mean().item() for layer in layers])
        assert list(rank.get_xdata()) == [0, 1]
    assert [text.get_text() for text in shares.get_legend().get_texts()] == ["trained", "before training"]


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_each_token_of_the_residual_stream_has_a_cell_and_prefix_tokens_the_same_colours(drawn, prefix):
    effects = torch.rand(4, prefix + 12, generator=torch.Generator().manual_seed(0))
    *panels, bar = drawn(cause_charts.draw_residual, effects, prefix).axes
    cells = torch.cat([torch.tensor(axes.images[0].get_array().data) for axes in panels], dim=1)
    assert torch.equal(cells, effects)
    assert len(panels) == (2 if prefix else 1)
    for axes in panels:
        assert axes.images[0].get_clim() == pytest.approx((0, effects.max().item()))
    labels = [text.get_text() for text in panels[0].get_yticklabels()]
    assert labels == ["before layer 0", "before layer 1", "before layer 2", "after the last"]
    assert [list(axes.get_xticks()) for axes in panels][-1] == [0, 2, 4, 6, 8, 10]
    assert not prefix or list(panels[0].get_xticks()) == list(range(prefix))
    assert bar.get_ylabel() == "change of the logit difference"
