import os
import subprocess
import sys
import textwrap

import pytest
import torch

from vit.training.checkpoints import AtomicCheckpointIO


def checkpoint(value: float) -> dict:
    return {"state_dict": {"weight": torch.full((1000,), value)}, "hyper_parameters": {}}


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "new" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(2.0), path)
    loaded = AtomicCheckpointIO().load_checkpoint(path)
    assert torch.equal(loaded["state_dict"]["weight"], torch.full((1000,), 2.0))
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]


def test_a_full_disk_leaves_the_previous_checkpoint_and_says_so(tmp_path):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(1.0), path)
    program = f"""
        import resource, torch
        from vit.training.checkpoints import AtomicCheckpointIO
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        big = {{"state_dict": {{"weight": torch.zeros(100_000)}}, "hyper_parameters": {{}}}}
        AtomicCheckpointIO().save_checkpoint(big, {str(path)!r})
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert result.returncode == 1
    assert f"could not write {path}" in result.stderr
    assert "the one before is intact; free some space, then resume" in result.stderr
    assert AtomicCheckpointIO().load_checkpoint(path)["state_dict"]["weight"][0] == 1.0
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_an_interrupted_write_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(checkpoint(1.0), path)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        AtomicCheckpointIO().save_checkpoint(checkpoint(2.0), path)
    assert AtomicCheckpointIO().load_checkpoint(path)["state_dict"]["weight"][0] == 1.0
