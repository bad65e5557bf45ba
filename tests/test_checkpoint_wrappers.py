"""Plain, compiled, DDP and FSDP2 modules have one path to the disk and back, under the names of the plain module."""

import forks
import pytest
import torch
import wrapped_runs
from safetensors.torch import load_file
from small_runs import checkpoints
from wrapped_runs import network

from eventloop.checkpoint import load_weights

PAIRS = [(wrap, wrap) for wrap in wrapped_runs.WRAPS] + [("fsdp2", "plain"), ("compiled", "fsdp2"), ("ddp", "compiled")]


@pytest.mark.parametrize(("wrap", "other"), PAIRS)
def test_a_run_of_a_wrapped_model_is_saved_resumed_and_exported_under_plain_names(tmp_path, wrap, other):
    """Fails if a wrapper's prefix gets into a file, or if a moment finds its parameter by number alone."""
    told = forks.told(wrapped_runs.cut_and_exported, wrap, other, str(tmp_path))
    for uncut, cut in told.values():
        assert cut == uncut
    plain = network(9)
    exported = load_file(tmp_path / "weights.safetensors")
    assert plain.load_state_dict(exported, strict=True)
    assert {name: value.tolist() for name, value in plain.state_dict().items()} == told["weights"][0]
    assert exported.keys() == network(0).state_dict().keys()
    loaded = load_weights(again := network(5), tmp_path / "cut")
    assert set(loaded.loaded) == exported.keys()
    assert all(torch.equal(value, exported[name]) for name, value in again.state_dict().items())
    assert set(checkpoints(tmp_path / "cut")[5].load()["model"]) == exported.keys()


@pytest.mark.parametrize("wrap", wrapped_runs.WRAPS)
def test_in_a_loop_of_ones_own_wrapped_models_and_their_optimizer_come_back_and_go_on(tmp_path, wrap):
    """Fails if the tensors of a part that is not called "model", or its moments, are not spread as that part's are."""
    restored, saved, loaded = forks.told(wrapped_runs.saved_and_loaded, wrap, str(tmp_path))
    assert restored == ("model", "critic", "optimizer")
    assert saved == loaded
    assert saved[0]
