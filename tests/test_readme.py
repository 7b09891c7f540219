"""What the README says to type runs."""

import re
from pathlib import Path

import pytest

import vit

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_its_python_runs_from_top_to_bottom():
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL):
        exec(code, names)
    assert isinstance(names["model"], vit.VisionTransformer)
    assert names["logits"].shape == (8, 10)
    assert names["tokens"].shape == (8, 1 + 96, 192)
    assert [part.shape for part in names["maps"]] == [(8, 192, 8, 8)] * 2
    assert names["weights"].shape == (1, 12, 65, 65)
    assert names["weights"].sum(-1).allclose(names["weights"].new_ones(()))


@pytest.mark.parametrize("name", sorted(set(re.findall(r"configs/\w+\.yaml|docs/images/\w+\.png|\w+\.md", README))))
def test_the_files_it_names_exist(name):
    assert (ROOT / name).exists()
