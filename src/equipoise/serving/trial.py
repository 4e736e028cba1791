"""The trial of a version: it is loaded and run in a process of its own before it is added, or
served.

A graph can loop for ever, take all memory, or end the process that runs it. In a trial that happens
to a child, whose processor time and memory are limited, and which ends at its deadline even if its
parent was killed. Processor time, since a busy machine makes a sound version slow and no version
endless.

    python -m equipoise.serving.trial onnx < {"path": ...}      {"version": ...} or {"error": ...}
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.serving.backend import load
from equipoise.serving.limits import limit_cpu, limit_memory
from equipoise.serving.settings import CPU_S, MEMORY, Backend

# the deadline, in multiples of the processor time: for a machine that does ten other things
WALL = 10


class Exceeded(ValueError):
    """The error of a version that took too much time or memory, or ended its process; another trial
    will cost as much.
    """


@dataclass
class Trial:
    """Trials of versions, any number at a time.

    A version that passed once is not tried again, since its name is the hash of its files.
    """

    backend: Backend = "onnx"
    trusted: Sequence[str] = ()
    batch: int = 64
    cpu_s: float = CPU_S
    memory: int = MEMORY
    _passed: set[str] = field(default_factory=set)
    _children: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _spare: subprocess.Popen[bytes] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def __call__(self, path: Path, version: str) -> None:
        """Try a version. ValueError if it cannot be used, ``Exceeded`` if it took too much."""
        if version in self._passed:
            return
        child, out = self._take(), b""
        asked = {
            "path": str(path),
            "trusted": list(self.trusted),
            "batch": self.batch,
            "cpu_s": self.cpu_s,
            "memory": self.memory,
        }
        with child:
            try:
                out, _ = child.communicate(json.dumps(asked).encode(), timeout=WALL * self.cpu_s)
            except subprocess.TimeoutExpired:
                pass
            finally:
                child.kill()
                with self._lock:
                    self._children.discard(child)
        try:
            said = json.loads(out)
        except ValueError:
            raise Exceeded(f"{path}: {self._end(child.returncode)}") from None
        if "error" in said:
            raise (Exceeded if said["memory"] else ValueError)(said["error"])
        if said["version"] != version:
            raise ValueError(f"{path}: expected version {version}, got {said['version']}")
        self._passed.add(version)

    def prepare(self) -> None:
        """Start the process of the next trial now, so that a new champion waits for no imports."""
        if self._spare is None and not self._closed:
            spare = self._take()
            with self._lock:
                ends = bool(self._closed)
                self._spare = None if ends else spare
            # ``close`` has ended it already, and leaves its pipes to the owner of the process
            if ends:
                with spare:
                    spare.kill()

    def close(self) -> None:
        """End all trials, which then fail."""
        with self._lock:
            self._closed = True
            spare, self._spare = self._spare, None
            children = list(self._children)
        for child in children:
            child.kill()
            child.wait()  # its pipes are closed by the thread that tries its version
        if spare is not None:
            with spare:
                self._children.discard(spare)

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise ValueError("expected a server that runs, got one that ends")
            child, self._spare = self._spare, None
            if child is not None and child.poll() is not None:  # something ended it
                with child:
                    self._children.discard(child)
                child = None
            if child is None:
                # The same import path as ours, and not the current folder, which may hold anything.
                env = os.environ | {
                    "PYTHONPATH": os.pathsep.join(os.path.abspath(one) for one in sys.path)
                }
                child = subprocess.Popen(
                    [sys.executable, "-P", "-m", "equipoise.serving.trial", self.backend],
                    env=env,
                    start_new_session=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
                self._children.add(child)
            return child

    def _end(self, code: int) -> str:
        wanted = "expected a version that loads and answers in a process of its own"
        if code == -signal.SIGXCPU:
            return f"{wanted} within {self.cpu_s:g} s of processor time, got no answer"
        if code in (-signal.SIGKILL, -signal.SIGALRM):
            return (
                f"{wanted} within {WALL * self.cpu_s:g} s, got none; or the machine had no "
                "memory left"
            )
        return (
            f"{wanted}, got {signal.Signals(-code).name if code < 0 else f'exit code {code}'} "
            "from it"
        )


def _limit(cpu_s: float, memory: int) -> None:
    """Limit this process from now on; the kernel ends it then, whatever code it is in."""
    limit_cpu(cpu_s)
    signal.alarm(math.ceil(WALL * cpu_s) + 1)
    limit_memory(memory)


def main() -> None:
    """Try the version that stdin names; end if stdin is closed without one."""
    said: dict[str, object]
    asked: dict[str, Any] = {"memory": MEMORY}
    try:
        from equipoise.serving.version import Version

        if sys.argv[1] == "torch":
            import equipoise.serving.torch_model  # noqa: F401
        else:
            import onnxruntime  # noqa: F401
        if not (data := sys.stdin.buffer.read()):
            return
        asked = json.loads(data)
        _limit(asked["cpu_s"], asked["memory"])
        model = load(Path(asked["path"]), sys.argv[1], trusted=asked["trusted"])  # type: ignore[arg-type]
        Version(model, batch=asked["batch"]).prove()
        said = {"version": model.version}
    except Exception as error:  # of any kind: the parent names the alias
        no_memory = isinstance(error, MemoryError) or "alloc" in str(error)
        text = " ".join(str(error).split())[:1000]
        if not text or not isinstance(error, ValueError | OSError):
            text = f"expected a version that loads and answers, got {type(error).__name__}: {text}"
        if no_memory:
            text = (
                f"expected a version that takes at most {asked['memory']:,} bytes of memory: {text}"
            )
        said = {"error": text, "memory": no_memory}
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
