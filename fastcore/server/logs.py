"""What the server writes to its log: lines for people, or JSON for machines. Never what requests say or get."""

import json
import logging
from datetime import datetime, timezone
from typing import Any

from uvicorn.config import LOGGING_CONFIG

__all__ = ["LOG_FORMATS", "JsonLines", "log_config"]

LOG_FORMATS = ("text", "json")


class JsonLines(logging.Formatter):
    """A JSON object a line: time, level, logger and message; of a request client, method, path and status instead."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": stamp, "level": record.levelname.lower(), "logger": record.name}
        if record.name == "uvicorn.access" and isinstance(record.args, tuple) and len(record.args) == 5:
            client, method, path, _, status = record.args
            line |= {"client": client, "method": method, "path": str(path).partition("?")[0], "status": status}
        else:
            line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_config(log_format: str, log_level: str) -> dict[str, Any]:
    """logging.config's dictionary for uvicorn's loggers and ours."""
    handlers = {name: dict(handler) for name, handler in LOGGING_CONFIG["handlers"].items()}
    if log_format == "json":
        handlers = {name: handler | {"formatter": "json"} for name, handler in handlers.items()}
    own = {"handlers": ["default"], "level": log_level.upper(), "propagate": False}
    return LOGGING_CONFIG | {
        "formatters": LOGGING_CONFIG["formatters"] | {"json": {"()": JsonLines}},
        "handlers": handlers,
        "loggers": LOGGING_CONFIG["loggers"] | {"fastcore": own},
    }
