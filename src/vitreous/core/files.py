"""Write files completely or not at all, lock them against other processes, and find the cache."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

from vitreous.core.errors import VitreousError, nearest_names, one_line

T = TypeVar("T")


class Busy(VitreousError):
    """Another process holds the lock."""


_NEIGHBOURS = 10_000  # names compared with a misspelt one, which takes 0.1 s
_BUSY = 0.5  # seconds to wait for a lock before it counts as taken: `is_locked` holds it for a moment


def cache_dir() -> Path:
    """Where fetched files and indexes lie: $VITREOUS_CACHE, else $XDG_CACHE_HOME/vitreous, else ~/.cache/vitreous."""
    if chosen := os.environ.get("VITREOUS_CACHE"):
        return user_path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (user_path(base) if base else Path.home() / ".cache") / "vitreous"


def user_path(text: str | Path) -> Path:
    """A path as it is typed: `~` and `~name` are home folders. What no file can be called is refused."""
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise VitreousError(f"{text}: there is no such user; write the whole path") from error
    try:
        path.lstat()
    except (OSError, ValueError) as error:  # the latter for a zero inside
        if isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG:
            raise VitreousError(f"{one_line(path, 100)}: cannot be the name of a file ({error.args[-1]})") from error
    return path


def did_you_mean_path(path: Path) -> str:
    """Of a path that is not there, the question whether a neighbour was meant, with a space behind it, or nothing."""
    missing = path
    while not missing.parent.exists():
        missing = missing.parent
    try:
        with os.scandir(missing.parent) as entries:
            names = [entry.name for entry in itertools.islice(entries, _NEIGHBOURS)]
        close = nearest_names(missing.name, [name for name in names if not name.startswith(".")])
    except OSError:  # a file, or a folder that may not be read
        return ""
    if not close:
        return ""
    mended = missing.parent / close[0]
    whole = mended / path.relative_to(missing)
    return f"did you mean {str(whole if whole.exists() else mended)!r}? "


@contextlib.contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """A path to write to; on leaving it is flushed and renamed to `target`, on any error removed and `target` untouched."""
    handle, name = make_part(target, tempfile.mkstemp)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        flush_to_disk(part)
        os.chmod(part, 0o666 & ~_read_umask())
        os.replace(part, target)
        flush_to_disk(target.parent)
    except OSError as error:
        raise VitreousError(f"{target}: cannot write ({error.strerror or error}); nothing was changed") from error
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(target: Path, replace: bool = True) -> Iterator[Path]:
    """A folder to fill; on leaving it becomes `target`, in place of one that was there. On any error nothing changes.

    Without `replace`, what was there must be empty, also if it was put there in the meantime.
    """
    part = Path(make_part(target, tempfile.mkdtemp))
    old = part.with_suffix(".old")
    try:
        yield part
        for path in part.iterdir():
            if path.is_file():  # safetensors makes its files for their owner alone
                path.chmod(0o666 & ~_read_umask())
            flush_to_disk(path)
        part.chmod(0o777 & ~_read_umask())
        if target.exists():
            if replace:
                os.replace(target, old)
            else:
                target.rmdir()
        os.replace(part, target)
        flush_to_disk(target.parent)
    except OSError as error:
        if old.exists() and not target.exists():
            os.replace(old, target)
        raise VitreousError(f"{target}: cannot write ({error.strerror or error}); nothing was changed") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def make_part(target: Path, make: Callable[..., T]) -> T:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return make(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise VitreousError(
            f"{target}: cannot write here ({error.strerror}); choose another place or free some space"
        ) from error


@contextlib.contextmanager
def locked(lock: Path, refusal: str | None = None) -> Iterator[None]:
    """Inside, no other process holds the lock file `lock`; the system frees it when a process dies.

    Waits for a process that holds it, or where there is a `refusal` raises that.
    """
    from filelock import FileLock, Timeout

    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock, timeout=-1 if refusal is None else _BUSY):
            try:
                yield
            finally:
                with contextlib.suppress(OSError):  # Windows removes it later
                    lock.unlink()  # while it is held: a process that waits for it notices, and makes a new one
    except Timeout:
        raise Busy(refusal) from None


def is_locked(lock: IO[bytes]) -> bool | None:
    """Whether a process holds this lock file, opened for reading; None where that is unknown. Held until it is closed."""
    try:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (ImportError, BlockingIOError) as error:
        return True if isinstance(error, OSError) else None
    return False


def is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def beside(path: Path, ending: str) -> Path:
    """The file of the same name with `ending` behind it."""
    return path.with_name(path.name + ending)


def write_text(target: Path, text: str) -> None:
    with atomic_file(target) as part:
        part.write_text(text, encoding="utf-8")


def flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
