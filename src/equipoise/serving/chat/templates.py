"""Chat templates, rendered in processes: a template is a program of the model's folder, which may
loop for ever or fill the memory.

A process has a limit of processor time for each prompt, and of memory. One that exceeds a limit
ends, costs its prompt alone, and has a successor.

    python -m equipoise.serving.chat.templates    lines of JSON on stdin and stdout
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

from equipoise.hints import said
from equipoise.language.scoring.process import die_with_parent
from equipoise.language.tokenizers import HubTokenizer
from equipoise.serving.limits import limit_cpu, limit_memory

CPU_S = 5  # seconds of processor time of a prompt
MEMORY = 1 << 30  # bytes that a prompt may take
WALL_S = 60.0  # seconds of a prompt, on a machine that does other things
START_S = 120.0  # seconds until a process has imported what it needs
MOST = 1 << 20  # tokens of a prompt
PIECE = 1 << 16


class Exceeded(ValueError):
    """The error of a template that took too much time or memory."""


class Templates:
    """The chat template of a tokenizer. Several threads may call it; each uses a process."""

    def __init__(self, directory: Path) -> None:
        """``directory``: of the tokenizer."""
        self._about = {"directory": str(directory)}
        self._idle, self._all = list[_Child](), set[_Child]()
        self._lock, self._closed = threading.Lock(), False

    def __call__(
        self, messages: Sequence[Mapping[str, object]], arguments: Mapping[str, object]
    ) -> list[int]:
        """Return the tokens of messages; ValueError if the template cannot read them.
        ``arguments``: of the template.
        """
        child = self._take()
        try:
            answer = child.ask({"messages": messages, "arguments": arguments}, WALL_S)
        except BaseException:
            self._end(child)
            raise
        self._give(child)
        if "error" in answer:
            raise ValueError(str(answer["error"]))
        return cast("list[int]", answer["tokens"])

    def prepare(self) -> None:
        """Start a process, so that the first prompt does not wait for it."""
        self._give(self._take())

    def close(self) -> None:
        """End the processes, whatever they are at; a waiting thread gets an error."""
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
            for one in self._all.difference(idle):
                one.kill()
        for one in idle:
            self._end(one)

    def _give(self, child: _Child) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(child)
                return
        self._end(child)

    def _take(self) -> _Child:
        while True:
            with self._lock:
                if self._closed:
                    raise Exceeded("prompt: must come before the end of the server, got a late one")
                if not self._idle:
                    self._all.add(child := _Child())
                    break
                child = self._idle.pop()
            if child.alive:
                return child
            self._end(child)
        try:
            child.ask(self._about | {"cpu_s": CPU_S, "memory": MEMORY}, START_S)
        except BaseException:
            self._end(child)
            raise
        return child

    def _end(self, child: _Child) -> None:
        with self._lock:
            self._all.discard(child)
        child.end()


class _Child:
    """The parent's side of one process."""

    def __init__(self) -> None:
        # the same import path as ours, and not the current folder, which may hold anything
        path = os.pathsep.join(os.path.abspath(one) for one in sys.path)
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", __spec__.name, str(os.getpid())],
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def ask(self, message: Mapping[str, object], within_s: float) -> Mapping[str, object]:
        """Send a message, and wait for the answer; ``Exceeded`` if there is none."""
        ends, answer = time.monotonic() + within_s, bytearray()
        assert self._popen.stdin is not None and self._popen.stdout is not None
        try:
            self._popen.stdin.write(json.dumps(message).encode() + b"\n")
            self._popen.stdin.flush()
            fd, waiting = self._popen.stdout.fileno(), select.poll()
            waiting.register(fd, select.POLLIN)  # ``select`` takes no descriptor above 1023
            while not answer.endswith(b"\n"):
                left = ends - time.monotonic()
                if left <= 0 or not waiting.poll(left * 1000):
                    break
                if not (piece := os.read(fd, PIECE)):
                    break
                answer += piece
        except (OSError, ValueError):  # it has ended
            answer.clear()
        if not answer.endswith(b"\n"):
            raise Exceeded(
                f"prompt: must be messages that the chat template takes within {CPU_S} s of "
                f"processor time and {MEMORY / 2**30:g} GiB of memory, got messages with which it "
                "does not end; try another template, or /v1/completions"
            )
        return cast("Mapping[str, object]", json.loads(answer))

    def kill(self) -> None:
        self._popen.kill()

    def end(self) -> None:
        """Kill the process, and close its pipes, which no other thread may use."""
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            with suppress(OSError):  # bytes that were not sent any more
                if pipe is not None:
                    pipe.close()


def _described(error: Exception, memory: int) -> str:
    if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
        return (
            "prompt: must be messages that the chat template takes within "
            f"{memory / 2**30:g} GiB of memory, got messages that take more"
        )
    return str(error) if isinstance(error, ValueError) else f"prompt: {said(error)}"


def main() -> None:
    """Read the tokenizer that the first line names, then answer each line."""
    die_with_parent(int(sys.argv[1]))
    lines, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    first = json.loads(lines.readline() or b"null")
    if first is None:
        return

    def send(answer: Mapping[str, object]) -> None:
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()

    tokenizer = HubTokenizer(Path(first["directory"]))
    tokenizer.warm()
    limit_memory(first["memory"])
    send({})
    for line in lines:
        limit_cpu(first["cpu_s"])
        try:
            asked = json.loads(line)
            tokens = tokenizer.prompt(asked["messages"], asked["arguments"])
        except (ValueError, MemoryError, RecursionError) as error:
            send({"error": _described(error, first["memory"])})
            continue
        if len(tokens) > MOST:
            send({"error": f"prompt: must have at most {MOST:,} tokens, got {len(tokens):,}"})
        else:
            send({"tokens": tokens})


if __name__ == "__main__":
    main()
