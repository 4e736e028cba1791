"""A disk that fails, for the tests: at the n-th file operation beneath a folder something goes
wrong.

    with Disk(folder, "fail", nth=3):
        act()

| fault | what happens at the n-th operation |
|---|---|
| fail | it raises an OSError (EIO), and nothing is done; the next one works. A close does not fail |
| full | each write, new file and new folder from then on raises ENOSPC, half of the first write done |
| short | a write does half of what it was given and returns that; any other operation works |
| slow | it and each one after it takes 2 ms longer |
| kill | the process is gone, a write half done; for a forked child |
| cut | the power fails: what was not synced is undone, then as "kill" |

A power cut undoes bytes that no fsync of their file followed, and names that no fsync of their
folder followed, the newest first: the strictest disk that POSIX allows. What C code does (SQLite,
HDF5) is not seen.
"""  # noqa: E501

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

Fault = Literal["fail", "full", "short", "slow", "kill", "cut"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
KILLED = 9  # exit code of a killed child
CHANGES = ("write", "open", "mkdir")  # what a full disk refuses
WRAPPED = (
    "open",
    "write",
    "read",
    "fsync",
    "close",
    "mkdir",
    "rename",
    "replace",
    "link",
    "unlink",
    "remove",
    "rmdir",
    "chmod",
    "listdir",
    "scandir",
    "lstat",
    "stat",
    "truncate",
    "ftruncate",
)


class Disk:
    """The file operations of this process beneath ``folder``, one of which goes wrong. ``count``:
    how many there were.
    """

    def __init__(self, folder: Path, fault: Fault | None = None, nth: int = 0) -> None:
        self.folder, self.fault, self.nth, self.count = folder.absolute(), fault, nth, 0
        self.done: list[str] = []  # the operations, for a message
        self._handles: dict[int, Path] = {}
        self._plain: dict[str, Any] = {name: getattr(os, name) for name in WRAPPED} | {
            "io.open": io.open
        }
        self._cutting = fault == "cut"
        self._busy = False  # with operations of its own, which do not count
        # (folders whose fsync makes it last, how it is undone)
        self._undo: list[tuple[set[Path], Callable[[], object]]] = []
        self._synced: dict[Path, int] = {}  # bytes of a file that a power cut leaves
        self._stash = (
            Path(tempfile.mkdtemp(prefix="equipoise-stash-", dir=self.folder.parent))
            if self._cutting
            else None
        )

    # ----------------------------------------------------------------------------------- in and out

    def __enter__(self) -> Disk:
        for name in WRAPPED:
            setattr(os, name, self._wrapped(name))
        io.open = builtins.open = self._opened
        return self

    def __exit__(self, *_: object) -> None:
        for name in WRAPPED:
            setattr(os, name, self._plain[name])
        io.open = builtins.open = self._plain["io.open"]
        if self._stash is not None:
            shutil.rmtree(self._stash, ignore_errors=True)

    def cut(self) -> None:
        """Undo what was not synced, the newest first."""
        self._busy = True
        for path, size in self._synced.items():
            if path.is_file() and path.stat().st_size > size:
                os.truncate(path, size)
        for _, undo in reversed(self._undo):
            undo()

    # -------------------------------------------------------------------------------- one operation

    def _place(self, given: Any, dir_fd: int | None = None) -> Path | None:
        """The path that an operation names, if it lies beneath the folder."""
        if self._busy:
            return None
        if isinstance(given, int):
            return self._handles.get(given)
        try:
            path = Path(os.fsdecode(given))
        except TypeError:
            return None
        if dir_fd is not None and not path.is_absolute():
            if (base := self._handles.get(dir_fd)) is None:
                return None
            path = base / path
        path = path.absolute()
        return path if path.is_relative_to(self.folder) else None

    def _arrives(self, name: str, half: Callable[[], object] = lambda: None) -> None:
        """Count an operation; what is to go wrong at it goes wrong here."""
        self.count += 1
        self.done.append(name)
        if self.fault is None or self.count < self.nth:
            return
        if self.fault == "slow":
            time.sleep(0.002)
        elif self.fault == "full" and name in CHANGES:
            if self.count == self.nth:
                half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
        elif self.count == self.nth and self.fault == "fail" and name != "close":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.folder))
        elif self.count == self.nth and self.fault in ("kill", "cut"):
            half()
            if self._cutting:
                self.cut()
                assert self._stash is not None
                shutil.rmtree(self._stash, ignore_errors=True)
            os._exit(KILLED)

    def _is_short(self) -> bool:
        return self.fault == "short" and self.count == self.nth

    def _wrapped(self, name: str) -> Callable[..., Any]:
        plain = self._plain[name]

        def write(handle: int, data: Any) -> int:
            if self._place(handle) is None:
                return int(plain(handle, data))
            view = memoryview(data).cast("B")
            part = view[: len(view) // 2]
            self._arrives(name, lambda: plain(handle, part))
            return int(plain(handle, part if self._is_short() and len(part) else view))

        def other(*args: Any, **more: Any) -> Any:
            path = self._place(
                args[0] if args else more.get("path", "."),
                more.get("dir_fd", more.get("src_dir_fd")),
            )
            if path is None:
                return plain(*args, **more)
            if name == "close":  # which closes in any case
                del self._handles[args[0]]
                plain(*args, **more)
                self._arrives(name)
                return None
            opens_old = name == "open" and not args[1] & (os.O_CREAT | os.O_TRUNC)
            self._arrives("look" if opens_old else name)
            undo = self._prepared(name, path, args, more)
            result = plain(*args, **more)
            if undo is not None:
                self._undo.append(undo)
            if name == "open":
                self._handles[result] = path
            if name == "fsync" and self._cutting:
                self._settle(path)
            return result

        return write if name == "write" else other

    def _opened(self, file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        """``io.open``, as ``pathlib`` and ``os.fdopen`` call it: of a path or of a handle that is
        open.
        """
        if (path := self._place(file)) is None:
            return self._plain["io.open"](file, mode, *args, **more)
        changes = not isinstance(file, int) and any(letter in mode for letter in "wax")
        self._arrives("open" if changes else "look")
        undo = (
            self._prepared(
                "open", path, (file, os.O_CREAT | (os.O_TRUNC if "w" in mode else 0)), {}
            )
            if changes
            else None
        )
        opened = self._plain["io.open"](file, mode, *args, **more)
        if undo is not None:
            self._undo.append(undo)
        self._handles[opened.fileno()] = path
        return _File(opened, self, path) if any(letter in mode for letter in "wax+") else opened

    # ---------------------------------------------------------------------------------- a power cut

    def _prepared(
        self, name: str, path: Path, args: tuple[Any, ...], more: dict[str, Any]
    ) -> tuple[set[Path], Callable[[], object]] | None:
        """How the operation that comes now is undone, and the folders whose sync makes it last."""
        if not self._cutting:
            return None
        self._busy = True
        try:
            return self._undone(name, path, args, more)
        finally:
            self._busy = False

    def _undone(
        self, name: str, path: Path, args: tuple[Any, ...], more: dict[str, Any]
    ) -> tuple[set[Path], Callable[[], object]] | None:
        if name == "open" and args[1] & os.O_CREAT and not path.exists():
            self._synced[path] = 0
            return {path.parent}, lambda: path.unlink(missing_ok=True)
        if name == "open" and args[1] & os.O_TRUNC and path.exists():
            kept = self._kept(path)
            return {path}, lambda: shutil.copy2(kept, path)
        if name == "mkdir":
            return {path.parent}, lambda: shutil.rmtree(path, ignore_errors=True)
        if name in ("unlink", "remove"):
            kept = self._kept(path)
            return {path.parent}, lambda: shutil.copy2(kept, path)
        if name == "rmdir":
            return {path.parent}, lambda: path.mkdir(exist_ok=True)
        if name in ("rename", "replace", "link"):
            target = Path(os.fsdecode(args[1])).absolute()
            kept_target = self._kept(target) if target.is_file() else None

            def back() -> None:
                if name == "link":
                    target.unlink(missing_ok=True)
                elif target.exists():
                    target.rename(path)
                if kept_target is not None:
                    shutil.copy2(kept_target, target)

            for known in [one for one in self._synced if one == path or path in one.parents]:
                self._synced[target / known.relative_to(path)] = self._synced.pop(known)
            return {path.parent, target.parent}, back
        return None

    def _kept(self, path: Path) -> Path:
        assert self._stash is not None
        kept = self._stash / str(len(list(self._stash.iterdir())))
        shutil.copy2(path, kept)
        return kept

    def _settle(self, path: Path) -> None:
        """An fsync: of a file its bytes last, of a folder its names."""
        self._busy = True
        if path.is_file():
            self._synced[path] = path.stat().st_size
        self._busy = False
        self._undo = [(needed - {path}, undo) for needed, undo in self._undo]
        self._undo = [(needed, undo) for needed, undo in self._undo if needed]


class _File:
    """A file that Python opened, whose writes, flushes and end count."""

    def __init__(self, file: Any, disk: Disk, path: Path) -> None:
        self._file, self._disk, self._path = file, disk, path

    def write(self, data: Any) -> Any:
        half = data[: len(data) // 2]
        self._disk._arrives("write", lambda: (self._file.write(half), self._file.flush()))
        # a buffered file writes the rest itself
        if self._disk._is_short() and isinstance(self._file, io.FileIO):
            return self._file.write(half)
        return self._file.write(data)

    def close(self) -> None:
        if not self._file.closed:
            self._disk._handles.pop(self._file.fileno(), None)
        self._file.close()

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
