"""The servers of this user: each keeps a small file of what it does, under a lock that ends with its process."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

__all__ = ["RunningServer", "announced", "running_servers"]


@dataclass(frozen=True)
class RunningServer:
    """What a server did a second ago or less. started: seconds since the epoch. models: whether each is loaded."""

    pid: int
    url: str
    started: float
    models: Mapping[str, bool]
    active_requests: int
    memory_bytes: int


def running_servers() -> list[RunningServer]:
    """Servers whose process lives, the oldest first. Files that others left are deleted."""
    from filelock import FileLock, Timeout

    found = []
    for path in _folder().glob("*.json"):
        lock = FileLock(path.with_suffix(".lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            with suppress(OSError, ValueError, TypeError):  # it ended just now, or is of another version
                found.append(RunningServer(**json.loads(path.read_text(encoding="utf-8"))))
        except OSError:
            continue
        else:
            _delete(path)
            lock.release()
    return sorted(found, key=lambda server: server.started)


@contextmanager
def announced() -> Iterator[Callable[[RunningServer], None]]:
    """What is called with the state of a server, as often as it may have changed; after the end it is no more.

    Where the file cannot be written the server runs unseen.
    """
    from filelock import FileLock

    path = _folder() / f"{uuid4().hex}.json"
    lock = FileLock(path.with_suffix(".lock"))
    said: RunningServer | None = None

    def say(server: RunningServer) -> None:
        nonlocal said
        if server == said:
            return
        said = server
        with suppress(OSError, NotImplementedError):
            if not lock.is_locked:
                path.parent.mkdir(parents=True, exist_ok=True)
                lock.acquire(timeout=0)
            part = path.with_suffix(".part")
            part.write_text(json.dumps(asdict(server)), encoding="utf-8")
            os.replace(part, path)  # readers see one or the other

    try:
        yield say
    finally:
        if lock.is_locked:
            _delete(path)
            lock.release()


def _folder() -> Path:
    from fastcore.sources.named import cache_dir

    return cache_dir() / "servers"


def _delete(path: Path) -> None:
    for each in (path, path.with_suffix(".part"), path.with_suffix(".lock")):
        with suppress(OSError):
            each.unlink(missing_ok=True)
