"""The library's own log records: quiet, structured, never configured on import."""

from __future__ import annotations

import functools
import logging
from collections.abc import MutableMapping
from typing import Any


@functools.cache
def logger() -> Any:
    """A structlog logger over ``logging.getLogger("eventloop")``: whoever configures logging decides what is shown.

    Keys travel as attributes of the log record, so that any formatter can use them.
    """
    import structlog  # here, so that `import eventloop` does not load it

    return structlog.wrap_logger(
        logging.getLogger("eventloop"),
        processors=[structlog.stdlib.filter_by_level, _text_and_extra],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _text_and_extra(_: Any, __: str, record: MutableMapping[str, Any]) -> dict[str, Any]:
    text = record.pop("event")
    told: dict[str, Any] = {name: record.pop(name) for name in ("exc_info", "stack_info") if name in record}
    taken = {"name", "msg", "args", "message", "asctime", "module", "created", "process", "thread"}
    return {"msg": text, "extra": {f"{k}_" if k in taken else k: v for k, v in record.items()}, **told}
