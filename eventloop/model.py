"""The names of a model's tensors as its user knows them, and the model as a part of a checkpoint."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from .errors import CheckpointError

if TYPE_CHECKING:
    from torch.nn import Module

METADATA: Final = "_metadata"  # under which torch keeps the modules' versions beside a state
VERSIONS: Final = ".versions"  # under which we do in it: no module and no buffer can be called so


def unwrap(model: Module) -> Module:
    """The user's own module inside DDP, DataParallel and torch.compile: its names are the ones in a checkpoint."""
    inner: Any = model
    while (attribute := _wraps(inner)) is not None:
        inner = getattr(inner, attribute)
    return inner  # type: ignore[no-any-return]  # what these wrap is a module


def _wraps(module: object) -> str | None:
    """The attribute in which a wrapper keeps the module; None of what is no wrapper."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    if isinstance(module, DataParallel | DistributedDataParallel):
        return "module"
    return "_orig_mod" if hasattr(module, "_orig_mod") else None


def modules_of(model: Module) -> Iterator[tuple[str, str, Module]]:
    """Every module, wrappers left out, with two prefixes: that of torch's names and that of the plain names."""
    pending = [("", "", model)]
    while pending:
        real, plain, module = pending.pop()
        if (attribute := _wraps(module)) is not None:
            pending.append((f"{real}{attribute}.", plain, getattr(module, attribute)))
            continue
        yield real, plain, module
        children = [(f"{real}{n}.", f"{plain}{n}.", m) for n, m in module._modules.items() if m is not None]
        pending += reversed(children)


def parameter_names(model: Module) -> dict[int, list[str]]:
    """The plain names of every parameter, by its id; one that is tied has several."""
    found: dict[int, list[str]] = {}
    for _, plain, module in modules_of(model):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(id(parameter), []).append(plain + name)
    return found


def with_versions(state: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """A model's state as torch has it: the modules' versions are an attribute, and all keys are names."""
    plain = OrderedDict((name, value) for name, value in state.items() if name != VERSIONS)
    if VERSIONS in state:
        plain._metadata = OrderedDict(state[VERSIONS])  # type: ignore[attr-defined]  # where torch looks for it
    return plain


def without_shape(model: Module) -> list[str]:
    """The plain names of parameters that a first forward pass has still to shape (LazyLinear and the like)."""
    from torch.nn.parameter import is_lazy

    return [
        plain + n for _, plain, m in modules_of(model) for n, p in m._parameters.items() if p is not None and is_lazy(p)
    ]


class Model:
    """A model under plain names: wrappers, also those around a part of it, leave no trace.

    Attributes:
        module: the user's own module.
    """

    def __init__(self, model: Module) -> None:
        self.module = unwrap(model)

    def names(self) -> dict[int, list[str]]:
        """The plain names of every parameter, by its id."""
        return parameter_names(self.module)

    def state_dict(self) -> dict[str, Any]:
        """Parameters, buffers and extra states under plain names, and the modules' versions."""
        state = self.module.state_dict()
        plain = self._plain_names(state)
        prefixes = {real.removesuffix("."): to.removesuffix(".") for real, to, _ in modules_of(self.module)}
        versions = {prefixes[at]: dict(known) for at, known in getattr(state, METADATA, {}).items() if at in prefixes}
        return {plain[name]: value for name, value in state.items()} | {VERSIONS: versions}

    def target(self, place: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Where a tensor of a checkpoint is to be read into: spread like the parameter that it is, or belongs to.

        None if that lies whole in this process, and for what belongs to no parameter.
        """
        import torch

        for name, tensor in self._spread.items():
            of_optimizer = place.startswith("optimizer.") and f".state.{name}." in place
            if (place == f"model.{name}" or of_optimizer) and tuple(tensor.shape) == shape:
                return torch.zeros_like(tensor, dtype=dtype)
        return None

    @cached_property
    def _spread(self) -> dict[str, Any]:
        return {name: tensor for name, tensor in self._plain_state().items() if hasattr(tensor, "to_local")}

    def problems(self, state: Mapping[str, Any], *, strict: bool = True) -> list[str]:
        """Why a state does not fit, all of it: names that are missing or not expected, and other shapes.

        What is read by code of the user's own (a module that overrides the loading, or has a hook before it) is not
        judged: only that code knows what fits.
        """
        own = self._own_loading()
        here = {name: value for name, value in self._plain_state().items() if not name.startswith(own)}
        there = {name: value for name, value in state.items() if name != VERSIONS and not name.startswith(own)}
        told = [f"size mismatch for {n}: {_shape(there[n])} in the checkpoint, {_shape(v)} in the model"
                for n, v in here.items() if n in there and _differ(there[n], v)]  # fmt: skip
        if strict:
            lists = {"missing": here.keys() - there.keys(), "unexpected": there.keys() - here.keys()}
            told = [f"{word}: {', '.join(sorted(names))}" for word, names in lists.items() if names] + told
        return told

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Copy a state into the model, once all of it is known to fit.

        Raises:
            CheckpointError: it does not; the message lists every name that is missing, unexpected or wrongly shaped.
        """
        if problems := self.problems(state, strict=strict):
            raise CheckpointError(f"the model is another one: {'; '.join(problems)}")
        plain = self._plain_names(self.module.state_dict())
        real = {to: name for name, to in plain.items()}
        given = {real.get(name, name): value for name, value in state.items() if name != VERSIONS}
        versions = state.get(VERSIONS, getattr(state, METADATA, None))
        if versions is not None:
            places = {to.removesuffix("."): at.removesuffix(".") for at, to, _ in modules_of(self.module)}
            given[VERSIONS] = {places[at]: known for at, known in versions.items() if at in places}
        self.module.load_state_dict(with_versions(given), strict=strict)

    def _plain_state(self) -> dict[str, Any]:
        state = self.module.state_dict()
        plain = self._plain_names(state)
        return {plain[name]: value for name, value in state.items()}

    def _plain_names(self, state: Mapping[str, Any]) -> dict[str, str]:
        """Torch's name to plain name; the longest prefix that is a module's is replaced."""
        prefixes = {real: plain for real, plain, _ in modules_of(self.module)}
        names = {}
        for name in state:
            prefix = name
            while prefix not in prefixes:
                prefix = prefix[: prefix[:-1].rfind(".") + 1]
            names[name] = prefixes[prefix] + name.removeprefix(prefix)
        return names

    def _own_loading(self) -> tuple[str, ...]:
        """The prefixes below which the user's code decides what fits."""
        return tuple(plain for _, plain, module in modules_of(self.module) if _loads_itself(module))


def _loads_itself(module: Module) -> bool:
    if module._load_state_dict_pre_hooks:
        return True
    owner = next(kind for kind in type(module).__mro__ if "_load_from_state_dict" in vars(kind))
    return not owner.__module__.startswith("torch.")


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape)


def _differ(there: Any, here: Any) -> bool:
    """Whether two tensors have other shapes; an extra state has none."""
    from torch import Tensor

    return isinstance(there, Tensor) and isinstance(here, Tensor) and _shape(there) != _shape(here)
