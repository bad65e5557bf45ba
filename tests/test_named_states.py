"""States of models and optimizers go by the names of the plain module, whatever is wrapped around it or its parts."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import checkpoints, identical
from torch import nn

from eventloop import CheckpointError, Loop, unwrap
from eventloop.checkpoint.codec import pack
from eventloop.model import Model, parameter_names
from eventloop.optimizers import Optimizers


class Parallel(nn.parallel.DistributedDataParallel):
    """A wrapper of the class of DDP; nothing is distributed here."""

    def __init__(self, module):
        nn.Module.__init__(self)
        self.module = module


def compiled(module):
    return torch.compile(module, backend="eager")


WRAPS = {"plain": lambda m: m, "compile": compiled, "DDP": Parallel, "both": lambda m: compiled(Parallel(m))}


def network(inner="plain", outer="plain"):
    torch.manual_seed(3)
    inside = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    return WRAPS[outer](nn.Sequential(WRAPS[inner](inside), nn.ReLU(), nn.Linear(4, 1)))


NAMES = {f"0.0.{n}" for n in ("weight", "bias")} | {"2.weight", "2.bias"}
BUFFERS = {f"0.1.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}


# -- models ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", WRAPS)
@pytest.mark.parametrize("inner", WRAPS)
def test_names_are_plain_also_where_a_part_of_the_model_is_wrapped(inner, outer):
    """Fails if only the outermost wrappers are looked through."""
    state = Model(network(inner, outer)).state_dict()
    assert state.keys() == NAMES | BUFFERS | {".versions"}
    assert state[".versions"]["0.1"] == {"version": 2}
    assert all("_orig_mod" not in at and "module" not in at for at in state[".versions"])
    pack({".versions": state[".versions"]}, "model", {})  # plain JSON


@pytest.mark.parametrize("outer", WRAPS)
@pytest.mark.parametrize("inner", WRAPS)
def test_a_state_goes_into_the_same_model_however_either_is_wrapped(inner, outer):
    """Fails if names are put back without the wrappers of the model that is filled."""
    first, second = network(), network(inner, outer)
    for parameter in first.parameters():
        parameter.data.add_(1.0)
    Model(second).load_state_dict(Model(first).state_dict())
    assert identical(Model(second).state_dict(), Model(first).state_dict())
    Model(first).load_state_dict(Model(second).state_dict())


def test_the_versions_of_the_modules_come_back_to_them():
    """Fails if they are lost: a module then takes the state for one of its first version."""
    seen = []

    class Versioned(nn.Linear):
        _version = 7

        def _load_from_state_dict(self, state, prefix, local, *rest):
            seen.append(local.get("version"))
            super()._load_from_state_dict(state, prefix, local, *rest)

    model = nn.Sequential(compiled(Versioned(1, 1)))
    Model(model).load_state_dict(Model(nn.Sequential(Versioned(1, 1))).state_dict())
    assert seen == [7]


def test_a_checkpoints_model_loads_into_a_plain_module_with_its_versions(tmp_path):
    """Fails if the versions are a key among the names."""
    model = network()
    with Loop(model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=tmp_path, max_steps=1) as loop:
        for _ in loop.updates():
            loop.step_end()
    state = checkpoints(tmp_path)[1].load()["model"]
    assert state._metadata["0.1"] == {"version": 2}
    network().load_state_dict(state)


def test_a_lazy_module_takes_the_shape_of_the_checkpoint():
    """Fails if modules with a hook before the loading are judged: such a hook gives the parameter its shape."""
    model = nn.Sequential(nn.LazyLinear(2))
    Model(model).load_state_dict(Model(nn.Sequential(nn.Linear(3, 2))).state_dict())
    assert model[0].weight.shape == (2, 3)


def test_a_tied_parameter_has_all_its_names():
    model = nn.Sequential(compiled(nn.Linear(2, 2)), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    assert parameter_names(model)[id(model[1].weight)] == ["0.weight", "1.weight"]


def test_unwrap_gives_the_users_own_module():
    inner = nn.Linear(1, 1)
    assert unwrap(compiled(nn.DataParallel(inner))) is inner


# -- optimizers --------------------------------------------------------------------------------------------------------


def update(model, optimizer, times=3):
    for n in range(times):
        optimizer.zero_grad()
        sum((p * (n + i + 1)).square().sum() for i, (_, p) in enumerate(sorted(named(model).items()))).backward()
        optimizer.step()


def named(model):
    inner = Model(model)
    return {inner.names()[id(p)][0]: p for p in model.parameters()}


def part(optimizer, model):
    return Optimizers({"": optimizer}, Model(model).names)


KINDS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


@given(st.sampled_from(sorted(KINDS)), st.permutations(range(6)), st.sampled_from(sorted(WRAPS)), st.integers(0, 2))
def test_in_any_order_under_any_wrapper_training_goes_on_as_it_was(kind, order, wrap, times):
    """Fails if a state is kept under the number of its parameter."""
    first, second = network(), network(wrap)
    whole = KINDS[kind](first.parameters())
    update(first, whole, times)
    saved = copy.deepcopy(part(whole, first).state_dict())
    Model(second).load_state_dict(Model(first).state_dict())
    parameters = list(second.parameters())
    rest = KINDS[kind]([parameters[i] for i in order])
    part(rest, second).load_state_dict(saved)
    update(first, whole)
    update(second, rest)
    assert identical(Model(second).state_dict(), Model(first).state_dict())
    assert identical(part(rest, second).state_dict()[""]["state"], part(whole, first).state_dict()[""]["state"])


def test_taking_a_state_before_the_first_update_changes_nothing():
    """torch's get_optimizer_state_dict makes an update to have a state (2.13); Adam then stands at step 1."""
    first, second = network(), network()
    optimizers = [KINDS["AdamW"](m.parameters()) for m in (first, second)]
    state = part(optimizers[0], first).state_dict()
    assert (state[""]["state"], optimizers[0].state) == ({}, {})
    for model, optimizer in zip((first, second), optimizers, strict=True):
        update(model, optimizer)
    assert identical(Model(first).state_dict(), Model(second).state_dict())


def test_the_state_of_a_parameter_that_is_gone_or_new_is_named_and_moves_to_no_other():
    """Fails if what follows a parameter that was left out takes over the state of its neighbour."""
    model = network()
    parameters = list(model.parameters())
    optimizer = KINDS["SGD"](parameters[1:])
    update(model, optimizer)
    state = copy.deepcopy(part(optimizer, model).state_dict())
    later = KINDS["SGD"](parameters[:-1])
    restored = part(later, model)
    assert restored.match(state) == ((), ("optimizer: 0.0.weight",), ("optimizer: 2.bias",))
    restored.load_state_dict(state)
    assert "momentum_buffer" not in later.state[parameters[0]]
    for one in parameters[1:-1]:
        assert torch.equal(later.state[one]["momentum_buffer"], optimizer.state[one]["momentum_buffer"])


def test_parameters_that_are_not_in_the_model_go_by_group_and_place():
    """Fails if what has no name is dropped, or shares a name with another."""
    model, own = network(), [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))]
    optimizer = KINDS["SGD"]([{"params": list(model.parameters())}, {"params": own}])
    sum(p.sum() for p in (*own, *model.parameters())).backward()
    optimizer.step()
    saved = part(optimizer, model).state_dict()
    assert {"group 1, parameter 0", "group 1, parameter 1"} < saved[""]["state"].keys()
    others = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))]
    again = KINDS["SGD"]([{"params": list(model.parameters())}, {"params": others}])
    part(again, model).load_state_dict(saved)
    assert torch.equal(again.state[others[1]]["momentum_buffer"], torch.ones(3))


def test_a_tied_parameter_finds_its_state_under_any_of_its_names():
    """Fails if the first name alone is looked for: the order of the modules decides which that is."""
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    optimizer = KINDS["SGD"](model.parameters())
    update(model, optimizer)
    other = nn.ModuleDict({"b": nn.Linear(2, 2, bias=False), "a": nn.Linear(2, 2, bias=False)})
    other["a"].weight = other["b"].weight
    again = KINDS["SGD"](other.parameters())
    part(again, other).load_state_dict(part(optimizer, model).state_dict())
    assert again.state[other["a"].weight].keys() == {"momentum_buffer"}


def test_a_parameter_of_another_shape_is_refused_by_name():
    own, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    saved = Optimizers({"": KINDS["SGD"]([own])}).state_dict()
    text = r"optimizer state of group 0, parameter 0: of a parameter of shape \(2,\), which has \(3,\) now"
    with pytest.raises(CheckpointError, match=text):
        Optimizers({"": KINDS["SGD"]([other])}).load_state_dict(saved)


def test_a_group_finds_its_rate_by_its_name_or_by_its_parameters():
    """Fails if groups go by their place alone."""
    model = network()
    *rest, weight, bias = model.parameters()
    optimizer = torch.optim.SGD([{"params": rest, "name": "rest"}, {"params": [weight, bias], "name": "head"}], lr=1.0)
    optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 0.5, 0.25
    optimizers = part(optimizer, model)
    optimizers._bases[""] = [1.0, 1.0]
    saved = optimizers.state_dict()
    swapped = torch.optim.SGD([{"params": [bias, weight], "name": "head"}, {"params": rest, "name": "rest"}], lr=1.0)
    part(swapped, model).load_state_dict(saved)
    assert [group["lr"] for group in swapped.param_groups] == [0.25, 0.5]
    alone = torch.optim.SGD([weight], lr=1.0)
    restored = part(alone, model)
    restored.load_state_dict(saved)
    assert alone.param_groups[0]["lr"] == 0.25


def test_what_an_optimizer_keeps_of_no_single_parameter_comes_back():
    """Fails if only the states of parameters are kept."""

    class Counts(torch.optim.SGD):
        def step(self, closure=None):
            self.state["updates"] = self.state.get("updates", 0) + 1
            return super().step(closure)

    model = network()
    optimizer = Counts(model.parameters(), lr=0.1)
    update(model, optimizer)
    again = Counts(model.parameters(), lr=0.1)
    part(again, model).load_state_dict(part(optimizer, model).state_dict())
    assert again.state["updates"] == 3


def test_a_model_that_does_not_fit_is_left_as_it_was():
    """Fails if torch is left to find out: it copies what fits before it raises."""
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CheckpointError, match=r"missing: 1\.bias, 1\.weight; unexpected: 2\.x"):
        Model(model).load_state_dict({"0.weight": torch.ones(1, 2), "0.bias": torch.ones(1), "2.x": torch.ones(1)})
    assert identical(model.state_dict(), before)
