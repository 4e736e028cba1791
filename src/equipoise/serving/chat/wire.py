"""Requests and errors of OpenAI's API: every field is checked and bounded."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from equipoise.actors.engine.request_engine import Sampling
from equipoise.hints import meant
from equipoise.serving import bounds
from equipoise.serving.messages import Name, Refused, decoded

Kind = Literal["chat", "completions"]
PROMPTS, SAMPLES = 128, 128  # most prompts of a request, and answers of a prompt
TOP, TOP_CHAT = 5, 20  # likeliest tokens of a completion, and of a chat
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
Stops = Annotated[list[Name], msgspec.Meta(max_length=4)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
PARAM = re.compile(r"at `\$\.(\w+)|unknown field `(\w+)`|^(\w+):")


class Denied(Refused):
    """A refusal with the field that it is about, and OpenAI's code."""

    def __init__(
        self, status: int, sentence: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(status, sentence)
        self.headers = ((b"retry-after", b"1"),) if status == 429 else ()
        self.param, self.code = param, code


def error(no: Refused) -> dict[str, object]:
    """Return OpenAI's envelope of a refusal."""
    usual = "server_error" if no.status >= 500 else "invalid_request_error"
    param, code = (no.param, no.code) if isinstance(no, Denied) else (None, None)
    about = {"message": no.sentence, "type": TYPES.get(no.status, usual)}
    return {"error": about | {"param": param, "code": code}}


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """The fields that both kinds of requests have; null counts as left out."""

    model: Annotated[str, msgspec.Meta(max_length=1024)] | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=SAMPLES)] | None = None
    stop: Name | Stops | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # accepted and not used
    user: object = None
    metadata: object = None
    store: object = None
    service_tier: object = None
    safety_identifier: object = None
    prompt_cache_key: object = None
    prompt_cache_retention: object = None
    # accepted only with a value that changes nothing
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None


class Completions(Request, forbid_unknown_fields=True):
    """A request of ``/v1/completions``."""

    prompt: object = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=TOP)] | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None


class Chat(Request, forbid_unknown_fields=True):
    """A request of ``/v1/chat/completions``."""

    messages: object = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=TOP_CHAT)] | None = None
    tools: object = None
    tool_choice: object = None
    parallel_tool_calls: object = None
    functions: object = None
    function_call: object = None
    response_format: object = None
    modalities: object = None
    audio: object = None
    prediction: object = None
    reasoning_effort: object = None
    verbosity: object = None
    web_search_options: object = None


READERS: Mapping[Kind, msgspec.json.Decoder[Request]] = {
    "chat": msgspec.json.Decoder(Chat),
    "completions": msgspec.json.Decoder(Completions),
}
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A checked request."""

    kind: Kind
    prompts: Sequence[object]  # texts, tokens, or the one list of messages
    n: int
    limit: int | None  # None: the server's
    temperature: float | None
    top_p: float
    seed: int | None
    stop: tuple[str, ...] | None
    stream: bool
    usage: bool  # does the stream end with the numbers of tokens?
    logprobs: int | None  # likeliest tokens besides the drawn one; None: no log-probabilities
    model: str
    template: Mapping[str, object] = field(default_factory=dict)  # of the chat template
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def answer(self) -> str:
        """The id of the answer."""
        return f"{'chatcmpl' if self.kind == 'chat' else 'cmpl'}-{self.id}"

    def sampling(self, number: int, temperature: float) -> Sampling:
        """Return the sampling of a prompt; ``temperature``: the server's."""
        return Sampling(
            temperature=temperature if self.temperature is None else self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            number=number,
            top=self.logprobs or 0,
        )


def read(kind: Kind, body: bytes, name: str, others: Sequence[str] = ()) -> Asked:
    """Return a checked request; ``Denied`` names the wrong field.

    ``name``: the served model's, if the request has none; ``others``: further names that it may
    have.
    """
    reader = READERS[kind]
    fields = (Chat if kind == "chat" else Completions).__struct_fields__
    one: Request
    try:
        one = decoded(reader, body, bounds.check_json, fields)
    except Refused as no:
        found = PARAM.search(no.sentence.removeprefix("body: "))
        param = next(filter(None, found.groups()), None) if found else None
        raise Denied(no.status, no.sentence, param) from None
    name = known_name(one.model, name, others)
    given = msgspec.structs.asdict(one)
    for param, allowed in NEUTRAL.items():
        if (value := given.get(param)) is not None and value not in allowed:
            wanted = f"left out or {bounds.shown(allowed[0])}" if allowed else "left out"
            raise Denied(
                400,
                f"{param}: must be {wanted}, since the answer is plain text by the model's own "
                f"probabilities, got {bounds.shown(value)}",
                param,
            )
    if one.stream_options is not None and not one.stream:
        raise Denied(
            400, "stream_options: must be left out without stream, got options", "stream_options"
        )
    if isinstance(one, Chat):
        return _chat(one, name)
    assert isinstance(one, Completions)
    return _common("completions", one, name, _prompts(one.prompt), one.max_tokens, one.logprobs)


def known_name(asked: str | None, name: str, others: Sequence[str] = ()) -> str:
    """Return the name that a request asks for; ``Denied`` if no model has it."""
    if asked is None or asked == name or asked in others:
        return name if asked is None else asked
    known = list(dict.fromkeys((name, *(one for one in others if len(one) < 60))))
    wanted = f"be {name!r}" if len(known) == 1 else f"be one of {', '.join(known)}"
    sentence = f"model: must {wanted}, got {bounds.shown(asked)}{meant(asked, known)}"
    raise Denied(404, sentence, "model", "model_not_found")


def _chat(one: Chat, name: str) -> Asked:
    if not isinstance(one.messages, list) or not one.messages:
        got = "none" if one.messages is None else bounds.shown(one.messages)
        raise Denied(400, f"messages: must be a list of messages, got {got}", "messages")
    limits = {one.max_tokens, one.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise Denied(
            400,
            "max_tokens: must be equal to max_completion_tokens if both are given, got "
            f"{one.max_tokens} and {one.max_completion_tokens}; try one of them alone",
            "max_tokens",
        )
    if one.top_logprobs is not None and not one.logprobs:
        raise Denied(
            400, f"top_logprobs: must be left out without logprobs, got {one.top_logprobs}",
            "top_logprobs",
        )  # fmt: skip
    top = (one.top_logprobs or 0) if one.logprobs else None
    return _common("chat", one, name, [one.messages], next(iter(limits), None), top)


def _common(
    kind: Kind,
    one: Request,
    name: str,
    prompts: Sequence[object],
    limit: int | None,
    logprobs: int | None,
) -> Asked:
    stop = [one.stop] if isinstance(one.stop, str) else one.stop
    return Asked(
        kind=kind,
        prompts=prompts,
        n=one.n or 1,
        limit=limit,
        temperature=one.temperature,
        top_p=1.0 if one.top_p is None else one.top_p,
        seed=one.seed,
        stop=None if stop is None else tuple(stop),
        stream=bool(one.stream),
        usage=bool(one.stream_options is not None and one.stream_options.include_usage),
        logprobs=logprobs,
        model=name,
    )


def _prompts(value: object) -> Sequence[object]:
    """Return the prompts of a completion: texts, or lists of tokens."""
    some = [value] if isinstance(value, str) or _is_tokens(value) else value
    if (
        not isinstance(some, list)
        or not some
        or not (all(isinstance(one, str) for one in some) or all(map(_is_tokens, some)))
    ):
        got = "none" if value is None else bounds.shown(value)
        raise Denied(
            400,
            f"prompt: must be a text, a list of tokens, or a list of either, got {got}",
            "prompt",
        )
    if len(some) > PROMPTS:
        raise Denied(400, f"prompt: must be at most {PROMPTS} prompts, got {len(some):,}", "prompt")
    return some


def _is_tokens(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)
