"""Optimizers as a part of a checkpoint: what belongs to a parameter is kept under the parameter's plain name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import CheckpointError
from .roster import LoadReport
from .settings import Difference, same

if TYPE_CHECKING:
    from torch.optim import Optimizer

Names = Mapping[int, Sequence[str]]  # of parameters, by id


class Optimizers:
    """Moments and steps are state; learning rate, weight decay and the like are settings, and the script's win.

    The learning rate in use is the checkpoint's, scaled by the script's base rate over that of the checkpoint. What
    belongs to a parameter finds it again by its name, whatever the order of the parameters and the wrappers around the
    model; a parameter that is not in the model goes by its group and its place there, and its value is kept here.

    Args:
        optimizers: by name; a single one is "".
        names: gives the names of the model's parameters by id.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer], names: Callable[[], Names] = dict) -> None:
        self._optimizers, self._names = optimizers, names
        self._bases = {key: [_rate(g) for g in o.param_groups] for key, o in optimizers.items()}

    def state_dict(self) -> dict[str, Any]:
        """Each optimizer's own state by names, and its base rates."""
        names = self._names()
        return {
            key: {"class": type(o).__name__, "bases": self._bases[key], **_by_name(o, names)}
            for key, o in self._optimizers.items()
        }

    def problems(self, states: Mapping[str, Any]) -> list[str]:
        """Why a state does not fit: other optimizers, or parameters of other shapes."""
        if states.keys() != self._optimizers.keys():
            there, here = (", ".join(map(repr, keys)) for keys in (states, self._optimizers))
            return [f"the checkpoint is of the optimizers {there} (a single one is ''), not of {here}"]
        told = []
        for key, optimizer in self._optimizers.items():
            was, now = states[key]["class"], type(optimizer).__name__
            if was != now:
                told.append(
                    f"the checkpoint holds the state of a {was}, the optimizer is a {now}: their states do not fit "
                    f"each other"
                )
        return told or [p for key in self._optimizers for p in self._shapes_that_differ(key, states[key])]

    def _shapes_that_differ(self, key: str, saved: Mapping[str, Any]) -> Iterator[str]:
        for name, _, parameter in self._found(key, saved):
            was, now = saved["shapes"].get(name), list(parameter.shape)
            if was is not None and was != now:
                yield f"optimizer state of {name}: of a parameter of shape {tuple(was)}, which has {tuple(now)} now"

    def match(self, states: Mapping[str, Any]) -> LoadReport:
        """The parameters that a state knows nothing of, and those that only the state knows."""
        new: list[str] = []
        gone: list[str] = []
        for key in self._optimizers:
            saved, of = states[key]["shapes"], f"optimizer {key!r}" if key else "optimizer"
            here = [name for name, _, _ in self._found(key, states[key])]
            new += [f"{of}: {name}" for name in here if name not in saved]
            gone += [f"{of}: {name}" for name in saved if name not in here]
        return LoadReport((), tuple(new), tuple(gone))

    def differences(self, states: Mapping[str, Any]) -> list[Difference]:
        """The settings that the script has changed."""
        found = []
        for key, optimizer in self._optimizers.items():
            of = f" of optimizer {key!r}" if key else ""
            groups = optimizer.param_groups
            if len(groups) != len(states[key]["groups"]):
                found.append(Difference(f"optimizer {key!r}", "groups", len(states[key]["groups"]), len(groups)))
            for i, (group, place) in enumerate(zip(groups, self._places(key, states[key]), strict=True)):
                if place is not None:
                    changed = _changed(group, states[key]["groups"][place], _at(states[key]["bases"], place))
                    found += [Difference(f"parameter group {i}{of}", *change) for change in changed]
        return found

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Load in place, and keep the script's settings.

        Raises:
            CheckpointError: the checkpoint is of other optimizers.
        """
        if problems := self.problems(states):
            raise CheckpointError("; ".join(problems))
        for key, optimizer in self._optimizers.items():
            saved, places = states[key], self._places(key, states[key])
            script = [_without(group, "params") for group in optimizer.param_groups]
            self._hand_over(key, saved, places)
            self._fill_strangers(key, saved)
            self._bases[key] = [_rate(mine) for mine in script]
            for group, mine, place in zip(optimizer.param_groups, script, places, strict=True):
                rate, in_use = mine["lr"], _rate(mine)
                if place is not None:
                    old = _at(saved["bases"], place)
                    in_use = _rate(saved["groups"][place]) * (_rate(mine) / old if old else 1.0)
                group.update(mine)
                if hasattr(rate, "fill_"):
                    rate.fill_(in_use)
                else:
                    group["lr"] = in_use

    def _hand_over(self, key: str, saved: Mapping[str, Any], places: Sequence[int | None]) -> None:
        """Give an optimizer the state in its own form, in which parameters have numbers."""
        optimizer, groups, n = self._optimizers[key], [], 0
        for group, place in zip(optimizer.param_groups, places, strict=True):
            numbers = list(range(n, n + len(group["params"])))
            groups.append({**(group if place is None else saved["groups"][place]), "params": numbers})
            n += len(numbers)
        state = {number: saved["state"][name] for number, (name, _, _) in enumerate(self._found(key, saved))
                 if name in saved["state"]}  # fmt: skip
        optimizer.load_state_dict({**saved["rest"], "state": {**saved["shared"], **state}, "param_groups": groups})

    def _fill_strangers(self, key: str, saved: Mapping[str, Any]) -> None:
        """Parameters that are not in the model have nobody else to keep them."""
        import torch

        with torch.no_grad():
            for name, _, parameter in self._found(key, saved):
                if name in saved["values"]:
                    parameter.copy_(saved["values"][name])

    def _found(self, key: str, saved: Mapping[str, Any]) -> Iterator[tuple[str, int, Any]]:
        """Each parameter in order: its name, if possible one that the state knows, and its group."""
        names = self._names()
        for i, group in enumerate(self._optimizers[key].param_groups):
            for j, parameter in enumerate(group["params"]):
                own = names.get(id(parameter)) or [_place(i, j)]
                yield next((name for name in own if name in saved["shapes"]), own[0]), i, parameter

    def _places(self, key: str, saved: Mapping[str, Any]) -> list[int | None]:
        """For each group that of the state: of the same name, else at the same place, else with the same parameters."""
        groups, there = self._optimizers[key].param_groups, saved["groups"]
        by_name = {told["name"]: i for i, told in enumerate(there) if "name" in told}
        by_parameter = {name: i for i, told in enumerate(there) for name in told["params"]}
        held: dict[int, int] = {}
        for name, i, _ in self._found(key, saved):
            if name in by_parameter:
                held.setdefault(i, by_parameter[name])
        same_number = len(groups) == len(there)
        return [by_name.get(g.get("name"), i if same_number else held.get(i)) for i, g in enumerate(groups)]


def _by_name(optimizer: Optimizer, names: Names) -> dict[str, Any]:
    """An optimizer's state with names in place of the numbers that torch gives to parameters.

    Torch's own ``get_optimizer_state_dict`` does that too, but makes an update if there was none yet (torch 2.13).
    """
    packed: dict[str, Any] = dict(optimizer.state_dict())
    groups: list[dict[str, Any]] = []
    called: dict[Any, str] = {}
    shapes: dict[str, list[int]] = {}
    for i, (group, told) in enumerate(zip(optimizer.param_groups, packed.pop("param_groups"), strict=True)):
        own = [(names.get(id(p)) or [_place(i, j)])[0] for j, p in enumerate(group["params"])]
        called |= dict(zip(told["params"], own, strict=True))
        shapes |= {name: list(p.shape) for name, p in zip(own, group["params"], strict=True)}
        groups.append({**_without(told, "param_names"), "params": own})
    state = packed.pop("state", {})
    return {
        "values": {
            _place(i, j): p.detach()
            for i, group in enumerate(optimizer.param_groups)
            for j, p in enumerate(group["params"])
            if id(p) not in names
        },
        "groups": groups,
        "shapes": shapes,
        "state": {called[number]: one for number, one in state.items() if number in called},
        "shared": {key: one for key, one in state.items() if key not in called},  # what is of no single parameter
        "rest": packed,
    }


def _place(group: int, parameter: int) -> str:
    return f"group {group}, parameter {parameter}"


def _changed(group: Mapping[str, Any], told: Mapping[str, Any], base: float | None) -> list[tuple[str, Any, Any]]:
    """Name, old and new value of each setting of a group that differs."""
    settings = _without(group, "params", "param_names", "lr", "name")
    changed = [(k, told[k], now) for k, now in settings.items() if k in told and not same(told[k], now)]
    if base is not None and base != _rate(group):
        changed.append(("lr", base, _rate(group)))
    return changed


def _without(group: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in names}


def _at(bases: Sequence[float], place: int) -> float | None:
    """The base rate of a group; one that was added in mid-run has none."""
    return bases[place] if place < len(bases) else None


def _rate(group: Mapping[str, Any]) -> float:
    return float(group["lr"])
