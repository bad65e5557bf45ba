"""The shipped callbacks, also for a project whose own ``callbacks.py`` hides the package of that name.

``from eventloop.callbacks import EarlyStopping`` gives the class that ``from callbacks import EarlyStopping`` gives, or
would give if something else were not called ``callbacks``. This is the one place where `eventloop` knows of that
package, and it loads it when somebody asks.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import ModuleType

    from callbacks import *  # noqa: F403  # what it has, we have

_INIT: Final = Path(__file__).resolve().parent.parent / "callbacks" / "__init__.py"
_BY_PATH: Final = "eventloop.shipped_callbacks"  # its name in sys.modules where "callbacks" is somebody else's


def _package() -> ModuleType:
    if (hidden := sys.modules.get(_BY_PATH)) is not None:
        return hidden
    if _is_ours("callbacks"):
        from importlib import import_module

        return import_module("callbacks")
    spec = spec_from_file_location(_BY_PATH, _INIT, submodule_search_locations=[str(_INIT.parent)])
    if spec is None or spec.loader is None:
        raise ImportError(f"the shipped callbacks are not at {_INIT}: install torch-eventloop again")
    module = sys.modules[_BY_PATH] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_ours(name: str) -> bool:
    loaded = sys.modules.get(name)
    spec = find_spec(name) if loaded is None else None  # finding it runs nothing of it
    origin = spec.origin if spec is not None else getattr(loaded, "__file__", None)
    return origin is not None and Path(origin).resolve() == _INIT


def __getattr__(name: str) -> Any:
    """A callback, loaded when somebody asks."""
    if name.startswith("__") and name != "__all__":  # the import system looks for __path__ and the like
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_package(), name)


def __dir__() -> list[str]:
    """What the package has."""
    return dir(_package())
