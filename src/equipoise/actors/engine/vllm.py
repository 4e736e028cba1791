"""The interface of vLLM's server: addresses, requests, and answers that are checked.

Only documented routes are used (https://docs.vllm.ai): ``/v1/completions`` with tokens in and out,
and in development mode (``VLLM_SERVER_DEV_MODE=1``) ``/server_info``, ``/pause``, ``/resume``,
``/collective_rpc`` with ``reload_weights``, ``/update_weight_version`` and ``/reset_prefix_cache``.
"""

from __future__ import annotations

import http.client
import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar, cast

from equipoise.access import LOCAL, is_local, need_token, read_token
from equipoise.actors.engine.engine import OnUpdate
from equipoise.hints import hint, one_line, shortened
from equipoise.urls import read_url

NAME = "vllm"  # begins its name as a setting
TOKEN = "EQUIPOISE_ENGINE_TOKEN"
MOST = 64  # servers
# versions whose answers this file was run against; docs/guides/engines.md has what was run
TESTED = ("0.32",)
SPANS = (0, 33)  # the first version that stamps each token with its weights' label
LONGEST = 1 << 28  # most bytes of an answer
LONGEST_LINE = 1 << 24
HEALTH_S = 10.0  # longest wait for a sign of life
EVERY = 32  # tokens of a sample that are sent together
T = TypeVar("T")


class ServerFailed(Exception):
    """The error of one server: it did not answer, or not as vLLM does."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def addresses(named: str) -> list[Address]:
    """Read the setting ``vllm:URL[,URL...]``; ValueError for another text."""
    kind, _, rest = named.partition(":")
    if kind != NAME:
        # SGLang has a sentence of its own: no name is near to it
        also = "; SGLang's server cannot tell which weights drew a token"
        raise ValueError(
            f"must be torch, sim:... or {NAME}:URL[,URL...], got {shortened(repr(named))}"
            f"{also if kind == 'sglang' else hint(kind, ('torch', 'sim', NAME))}"
        )
    found = [_address(one.strip()) for one in rest.split(",")]
    if len(set(found)) < len(found) or len(found) > MOST:
        raise ValueError(f"{NAME}: must be at most {MOST} different URLs, got {shortened(rest)!r}")
    return found


def _address(text: str) -> Address:
    example = f"{NAME}:http://127.0.0.1:8000"
    token = f"a token is set by ${TOKEN} or source.engine_token_file"
    found = read_url(text, f"{NAME}: must be URLs", example, token)
    if found.path.strip("/") not in ("", "v1"):
        raise ValueError(
            f"{NAME}: must be URLs without a path, such as {example}, got {shortened(repr(text))}"
        )
    tls = found.scheme == "https"
    return Address(found.host, found.port or (443 if tls else 80), tls)


def token_for(named: Sequence[Address], file: str) -> str | None:
    """Return the token that the servers want; ValueError if one beyond this machine has none."""
    token = read_token(TOKEN, file or None, "source.engine_token_file")
    for one in named:
        if one.host not in LOCAL and not is_local(one.host):
            how = f"set ${TOKEN}, or source.engine_token_file to a file with one (vllm --api-key)"
            need_token(one.host, token, f"{NAME}:{one}", how)
    return token


# ------------------------------------------------------------------------------------ one request


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """A request for samples of one prompt."""

    text: Sequence[int]  # tokens
    samples: int
    limit: int
    temperature: float
    seed: int
    eos: Sequence[int]
    stop: Sequence[str]
    salt: str  # keys and values are shared between requests of one salt
    extra: Mapping[str, Sequence[int]] = field(default_factory=dict)


def completion(model: str, draws: Draws) -> dict[str, object]:
    """Return the body of ``/v1/completions``. All settings of sampling are given, since
    ``generation_config.json`` of the model replaces missing ones.
    """
    body: dict[str, object] = {
        "model": model,
        "prompt": list(draws.text),
        "n": draws.samples,
        "max_tokens": draws.limit,
        "temperature": draws.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": draws.seed,
        "stop_token_ids": list(draws.eos),
        "ignore_eos": True,
        "logprobs": 0,  # of the drawn token alone
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "return_weight_versions": True,
        "cache_salt": draws.salt,
        "stream": True,
        "stream_interval": EVERY,
    }
    if draws.stop:
        body |= {"stop": list(draws.stop), "include_stop_str_in_output": True}
    if draws.extra:
        body["vllm_xargs"] = dict(draws.extra)
    return body


@dataclass(slots=True)
class Written:
    """A sample as a server has written it so far."""

    token: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    labels: list[tuple[int, int, str]] = field(default_factory=list)  # start, end, weights
    finish: str = ""  # "stop" or "length" once it has ended
    reason: object = None  # the token or the text that ended it


def add(chunk: object, written: Sequence[Written], vocabulary: int, limit: int) -> None:
    """Add a part of a stream to the samples; ServerFailed unless it is as vLLM writes it."""
    choices = _of(chunk, "choices", list)
    for choice in choices:
        index, tokens = _of(choice, "index", int), _of(choice, "token_ids", list)
        if not 0 <= index < len(written) or written[index].finish:
            raise ServerFailed(f"answered with choice {index} of {len(written)}, or with it twice")
        one = written[index]
        if tokens:
            logps = _of(_of(choice, "logprobs", dict), "token_logprobs", list)
            fits = all(type(x) is int and 0 <= x < vocabulary for x in tokens)
            # -9999 is vLLM's for a token without a chance
            known = all(isinstance(x, int | float) and -9999 < x <= 1e-3 for x in logps)
            if not fits or not known or len(logps) != len(tokens):
                raise ServerFailed(
                    "answered with tokens or log-probabilities that are none: "
                    f"{tokens!r:.80}, {logps!r:.80}"
                )
            one.token += tokens
            one.logp += map(float, logps)
        if len(one.token) > limit:
            raise ServerFailed(f"answered with {len(one.token)} tokens, where {limit} were asked")
        finish = cast("Mapping[str, object]", choice).get("finish_reason")
        if finish is not None:
            if finish not in ("stop", "length") or not one.token:
                raise ServerFailed(f"ended a sample of {len(one.token)} tokens by {finish!r:.40}")
            one.finish, one.reason = str(finish), choice.get("stop_reason")
            one.labels = _labels(choice.get("weight_versions"), len(one.token))


def _labels(spans: object, length: int) -> list[tuple[int, int, str]]:
    if spans is None:
        return []
    found = [
        (_of(one, "start", int), _of(one, "end", int), _of(one, "version", str))
        for one in (spans if isinstance(spans, list) else [spans])
    ]
    ends = [0, *(end for _, end, _ in found)]
    if [start for start, _, _ in found] != ends[:-1] or ends[-1] != length:
        raise ServerFailed(f"answered with weight_versions of {length} tokens as {spans!r:.120}")
    return found


def _of(value: object, name: str, kind: type[T]) -> T:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ServerFailed(f"answered without {name!r}: {shortened(repr(value), 120)}")
    return found


# --------------------------------------------------------------------------------------- a server


class Server:
    """One server. Each method blocks, and raises ServerFailed; ``cut`` ends those under way."""

    def __init__(self, address: Address, token: str | None, deadline_s: float) -> None:
        self.address, self._token, self.deadline_s = address, token, deadline_s
        self.model, self.spans = "", False
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"{NAME} at {self.address}"

    def check(self, versions: Sequence[str], length: int, on_update: OnUpdate) -> None:
        """Look at version and settings; ServerFailed if samples could not be learned from."""
        version = _of(self.call("GET", "/version"), "version", str)
        numbers = version.split("+")[0].split(".")
        if not any(numbers[: one.count(".") + 1] == one.split(".") for one in versions):
            raise ServerFailed(
                f"is version {version!r:.40}, tested are {', '.join(versions)}; --set "
                f"source.engine_versions={'.'.join(numbers[:2])} accepts it"
            )
        self.spans = tuple(int(x) for x in numbers[:2] if x.isdecimal()) >= SPANS
        if on_update != "finish" and not self.spans:
            raise ServerFailed(
                f"is version {version}, which does not tell the weights of each token; --set "
                "source.on_update=finish ends samples before new weights"
            )
        models = _of(self.call("GET", "/v1/models"), "data", list)
        self.model = _of(models[0] if models else None, "id", str)
        room = _of(models[0], "max_model_len", int)
        if room < length:
            raise ServerFailed(f"has room for {room:,} tokens, {length:,} are needed; start it "
                               f"with --max-model-len {length}")  # fmt: skip
        try:
            about = self.call("GET", "/server_info?config_format=json")
        except ServerFailed as error:
            raise ServerFailed(f"must run with VLLM_SERVER_DEV_MODE=1: it {error}") from None
        config = _of(_of(about, "vllm_config", dict), "model_config", dict)
        if (mode := config.get("logprobs_mode")) != "processed_logprobs":
            raise ServerFailed(
                "must give the log-probabilities that tokens are drawn by, got logprobs_mode "
                f"{mode!r:.40}; start it with --logprobs-mode processed_logprobs"
            )

    def alive(self) -> None:
        self.call("GET", "/health", within=min(HEALTH_S, self.deadline_s))

    def pause(self, *, finish: bool) -> None:
        """Hold all samples, or end them first; new requests wait."""
        self.call("POST", f"/pause?mode={'wait' if finish else 'keep'}")

    def resume(self) -> None:
        self.call("POST", "/resume")

    def load(self, folder: str, label: str) -> None:
        """Take the weights of a folder of safetensors; call it between ``pause`` and ``resume``."""
        arguments = {"weights_path": folder}
        body = {"method": "reload_weights", "kwargs": arguments, "timeout": self.deadline_s}
        self.call("POST", "/collective_rpc", body)
        self.call("POST", "/update_weight_version", {"new_version": label})

    def forget(self) -> None:
        """Drop the keys and values of running samples, which are then computed again."""
        self.call("POST", "/reset_prefix_cache?reset_running_requests=true")

    def logps(self, text: Sequence[int], salt: str) -> list[float]:
        """Return the log-probabilities of all tokens of a text but the first."""
        body = {"model": self.model, "prompt": list(text), "max_tokens": 1, "temperature": 1.0,
                "logprobs": 0, "prompt_logprobs": 0, "return_tokens_as_token_ids": True,
                "ignore_eos": True, "cache_salt": salt}  # fmt: skip
        choices = _of(self.call("POST", "/v1/completions", body), "choices", list)
        found = _of(choices[0] if choices else None, "prompt_logprobs", list)
        if len(found) != len(text):
            raise ServerFailed(f"answered with {len(found)} log-probabilities of {len(text)}")
        each = [
            _of(_of(one, str(token), dict), "logprob", float | int)  # type: ignore[arg-type]
            for one, token in zip(found[1:], text[1:], strict=True)
        ]
        if not all(map(math.isfinite, each)):
            raise ServerFailed("answered with log-probabilities that are not finite")
        return [float(one) for one in each]

    def draw(self, draws: Draws, vocabulary: int, heard: Callable[[], object]) -> list[Written]:
        """Draw samples. ``heard`` is called when they are queued, and with each part that comes."""
        body, written = completion(self.model, draws), [Written() for _ in range(draws.samples)]
        # between two parts there may be a long wait for a place: whether the server lives is asked
        # by ``alive``
        with self._answer("POST", "/v1/completions", body, None) as answer:
            self._good(answer)
            heard()
            size = 0
            while line := answer.readline(LONGEST_LINE):
                size += len(line)
                if not line.endswith(b"\n") or size > LONGEST:
                    raise ServerFailed(f"answered with a torn or long line of {len(line)} bytes")
                if not line.strip():
                    continue
                if not line.startswith(b"data: "):
                    raise ServerFailed(f"answered with no event but {line!r:.80}")
                if line.startswith(b"data: [DONE]"):
                    break
                chunk = _json(line[6:])
                if isinstance(chunk, dict) and "error" in chunk:
                    raise ServerFailed(f"ended samples: {shortened(repr(chunk['error']), 200)}")
                add(chunk, written, vocabulary, draws.limit)
                heard()
        if not all(one.finish for one in written):
            raise ServerFailed("ended an answer before its samples")
        return written

    def cut(self) -> None:
        """End all exchanges that are under way."""
        with self._lock:
            for one in self._open:
                with suppress(OSError):  # it has ended by itself
                    one.shutdown(socket.SHUT_RDWR)

    def call(
        self, method: str, path: str, body: object = None, *, within: float | None = None
    ) -> object:
        """Return the JSON of an answer, None for an empty one."""
        within = self.deadline_s if within is None else within
        with self._answer(method, path, body, within) as answer:
            self._good(answer)
            until, data = time.monotonic() + within, bytearray()
            while part := answer.read1(1 << 16):
                data += part
                if len(data) > LONGEST or time.monotonic() > until:
                    raise ServerFailed(f"answered {path} with more than it should, or too slowly")
        return _json(bytes(data)) if data else None

    @contextmanager
    def _answer(
        self, method: str, path: str, body: object, within: float | None
    ) -> Iterator[http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self.address.tls else http.client.HTTPConnection
        # a request is accepted at once, also while the server is paused
        conn = kind(self.address.host, self.address.port, timeout=within or self.deadline_s)
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        sock: socket.socket | None = None
        try:
            conn.connect()
            sock = cast("socket.socket", conn.sock)
            with self._lock:
                self._open.add(sock)
            conn.request(method, path, data, headers)
            # an answer without a length keeps the socket open after the connection is closed
            with conn.getresponse() as answer:
                if within is None:
                    sock.settimeout(None)
                yield answer
        except TimeoutError:
            raise ServerFailed(
                f"did not answer {path} within {within or self.deadline_s:g} s"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            said = shortened(one_line(str(error)) or type(error).__name__, 120)
            raise ServerFailed(f"could not be asked for {path}: {said}") from None
        finally:
            with self._lock:
                self._open.discard(cast("socket.socket", sock))
            conn.close()

    def _good(self, answer: http.client.HTTPResponse) -> None:
        if answer.status != 200:
            said = one_line(answer.read(1000).decode("utf-8", "replace"))
            raise ServerFailed(f"answered with status {answer.status}: {shortened(said, 240)}")


def _json(data: bytes) -> object:
    try:
        return cast("object", json.loads(data))
    except (ValueError, RecursionError):
        raise ServerFailed(f"answered with no JSON but {data!r:.80}") from None
