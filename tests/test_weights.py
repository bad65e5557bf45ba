"""Weights alone: `load_weights` and `Loop(init_from=)`, from a checkpoint, a run folder or anybody's file."""

import logging

import pytest
import torch
from safetensors.torch import save_file
from small_runs import EVERY_UPDATE, checkpoints, count, said
from torch import nn

from callbacks import ModelCheckpoint
from eventloop import CheckpointError, Loop
from eventloop.checkpoint import load_weights


def network(fill):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    for value in model.state_dict().values():
        value.fill_(fill)
    return model


def filled_with(model, fill):
    return all(bool((value == fill).all()) for value in model.state_dict().values())


def file_of(tmp_path, tensors):
    save_file(dict(tensors), path := tmp_path / "weights.safetensors")
    return path


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "_orig_mod.module."])
def test_a_file_of_a_wrapped_model_fits_the_plain_one(tmp_path, prefix):
    """Fails if only one of the wrappers, or only one level of them, is left out."""
    path = file_of(tmp_path, {prefix + name: value for name, value in network(3).state_dict().items()})
    loaded = load_weights(model := network(0), path)
    assert filled_with(model, 3)
    assert (loaded.prefix, loaded.missing, loaded.unexpected) == (prefix, (), ())
    assert set(loaded.loaded) == network(0).state_dict().keys()


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager")])
def test_a_plain_file_fits_a_wrapped_model(tmp_path, wrap):
    path, model = file_of(tmp_path, network(3).state_dict()), network(0)
    model[0] = torch.compile(model[0], backend="eager")
    load_weights(wrap(model), path)
    assert filled_with(model, 3)


def test_a_models_own_part_called_module_keeps_its_name(tmp_path):
    """Fails if the prefix is left out although the names fit as they stand."""

    class Own(nn.Module):
        def __init__(self, fill):
            super().__init__()
            self.module = network(fill)

    load_weights(model := Own(0), file_of(tmp_path, Own(3).state_dict()))
    assert filled_with(model, 3)


def test_all_that_does_not_fit_is_listed_and_nothing_is_copied(tmp_path):
    """Fails if the first problem ends the search, or comes after the first copy."""
    tensors = network(3).state_dict() | {"0.weight": torch.ones(3, 2), "2.bias": torch.ones(1)}
    del tensors["0.bias"]
    with pytest.raises(CheckpointError) as caught:
        load_weights(model := network(0), path := file_of(tmp_path, tensors))
    assert str(caught.value) == (
        f"the weights of {path} are of another model: missing: 0.bias; unexpected: 2.bias; size mismatch for 0.weight: "
        f"(3, 2) in the checkpoint, (2, 2) in the model"
    )
    assert filled_with(model, 0)


def test_not_strict_it_returns_what_is_missing_and_what_is_not_expected(tmp_path):
    tensors = network(3).state_dict() | {"2.bias": torch.ones(1)}
    del tensors["0.bias"]
    loaded = load_weights(model := network(0), file_of(tmp_path, tensors), strict=False)
    assert (loaded.missing, loaded.unexpected) == (("0.bias",), ("2.bias",))
    assert model[0].bias.tolist() == [0, 0]
    assert model[0].weight.tolist() == [[3, 3], [3, 3]]
    with pytest.raises(CheckpointError, match=r"size mismatch for 0\.weight"):
        load_weights(model, file_of(tmp_path, {"0.weight": torch.ones(5)}), strict=False)


@pytest.mark.parametrize(
    ("rename", "hint"),
    [
        (lambda name: f"model.{name}", "names there begin with 'model.'"),
        (lambda name: name.removeprefix("0."), "names of the model begin with '0.'"),
    ],
)
def test_a_prefix_that_would_help_is_named(tmp_path, rename, hint):
    path = file_of(tmp_path, {rename(name): value for name, value in network(3).state_dict().items()})
    with pytest.raises(CheckpointError, match=hint):
        load_weights(network(0), path)


def test_of_tied_weights_one_name_is_enough(tmp_path):
    """Fails if a file that has them once, as the format wants it, counts as incomplete."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    for name in ("0.weight", "1.weight"):
        loaded = load_weights(model, file_of(tmp_path, {name: torch.full((2, 2), len(name) + float(name[0]))}))
        assert loaded.missing == ()
        assert model[0].weight.tolist() == model[1].weight.tolist() == [[8 + float(name[0])] * 2] * 2


def test_a_run_folder_means_its_newest_whole_checkpoint_and_a_checkpoint_itself(tmp_path):
    count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    found = checkpoints(tmp_path)
    (found[3].path / "model.safetensors").write_bytes(b"x")
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(()))
    for path, expected in ((tmp_path, 2), (tmp_path / "checkpoints", 2), (found[1].path, 1)):
        load_weights(model, path)
        assert model.w.item() == expected
    with pytest.raises(CheckpointError, match=r"model\.safetensors has 1 bytes instead of"):
        load_weights(model, found[3].path)


@pytest.mark.parametrize("name", ["nowhere", "weights.pt", "empty"])
def test_a_path_without_weights_is_an_error_that_says_what_would_be_some(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "weights.pt").write_text("")
    with pytest.raises(CheckpointError, match=rf"no weights at .*{name}: .*; give a checkpoint, a run folder"):
        load_weights(network(0), tmp_path / name)


# -- init_from ---------------------------------------------------------------------------------------------------------


class SeesWeights:
    def bind(self, model):
        self.at_bind = model.state_dict()["w"].item()

    def on_step_end(self, event, state):
        return None


def test_a_run_begins_with_these_weights_and_nothing_else_of_the_checkpoint(tmp_path):
    """Fails if counters or moments come along, or if a callback is bound to a model that is filled only later."""
    count(tmp_path / "old", ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    loop = count(tmp_path / "new", sees := SeesWeights(), max_steps=2, init_from=tmp_path / "old")
    assert (sees.at_bind, loop.result.step, loop.resumed) == (3, 2, None)
    assert checkpoints(tmp_path / "new")[2].load()["model"]["w"].item() == 5
    assert loop.state.run_id != checkpoints(tmp_path / "old")[3].run_id


def test_a_run_without_a_folder_can_begin_with_weights_too(tmp_path):
    path = file_of(tmp_path, {"w": torch.tensor(7.0)})
    assert count(None, sees := SeesWeights(), max_steps=1, init_from=path).result.step == 1
    assert sees.at_bind == 7


def test_auto_goes_on_from_its_own_checkpoint_and_says_that_the_weights_are_ignored(tmp_path, caplog):
    """Fails if a restarted job begins anew with the weights that it was first given."""
    caplog.set_level(logging.INFO, logger="eventloop")
    path = file_of(tmp_path, {"w": torch.tensor(7.0)})
    for steps in (1, 2):
        count(tmp_path / "run", max_steps=steps, resume="auto", init_from=path)
    assert checkpoints(tmp_path / "run")[2].load()["model"]["w"].item() == 9
    ignored = [text for text in said(caplog) if text.startswith("init_from=")]
    assert ignored == [f"init_from={str(path)!r} is ignored: the run goes on from a checkpoint of its own"]


def test_a_missing_path_or_other_weights_are_an_error_before_anything_is_written(tmp_path):
    with pytest.raises(CheckpointError, match=r"no weights at .*nowhere: there is nothing"):
        count(tmp_path / "run", max_steps=1, init_from=tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="missing: w; unexpected: v"):
        count(tmp_path / "run", max_steps=1, init_from=file_of(tmp_path, {"v": torch.ones(())}))
    assert not (tmp_path / "run").exists()


def test_weights_from_two_places_are_an_error(tmp_path):
    with pytest.raises(
        ValueError, match=r"init_from='a\.safetensors' beside resume=3: the weights come from one of them"
    ):
        Loop(
            network(0),
            torch.optim.SGD(network(0).parameters()),
            run_dir=tmp_path,
            resume=3,
            init_from="a.safetensors",
        )
    assert list(tmp_path.iterdir()) == []
