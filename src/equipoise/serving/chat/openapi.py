"""The OpenAPI document of a language model's server, made from the requests themselves."""

from __future__ import annotations

import msgspec

from equipoise.serving.chat.wire import NEUTRAL, PROMPTS, Chat, Completions
from equipoise.serving.openapi import STATUSES, Schema

REFERENCE = "#/components/schemas/{name}"
ANY = (400, 401, 403, 405, 408, 431, 500, 503)  # of every path
ASKED = (404, 413, 415, 429, 504)  # also of a request for an answer
SAID = STATUSES | {
    404: "No such path or model.",
    429: "Too many answers are open; the header Retry-After has a time.",
    504: "No answer within the deadline.",
}
ANYTHING = {"description": "A value that is not used."}
TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
TEXTS = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
PROMPT = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        TOKENS,
        TEXTS | {"maxItems": PROMPTS},
        {"type": "array", "items": TOKENS, "minItems": 1, "maxItems": PROMPTS},
    ]
}
MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "user", "assistant", "tool"]},
        "content": {"type": "string"},
    },
    "required": ["role", "content"],
}


def openapi(names: list[str]) -> Schema:
    """Return the document in OpenAPI 3.1. ``names``: the models."""
    from equipoise import __version__

    (chat, completions), components = msgspec.json.schema_components(
        [Chat, Completions], ref_template=REFERENCE, schema_hook=lambda kind: ANYTHING
    )
    for kind in (Chat, Completions):
        fields = components[kind.__name__]["properties"]
        fields["model"] = {"anyOf": [{"enum": names}, {"type": "null"}]}
        for name, values in NEUTRAL.items():
            if name in fields:
                fields[name] = {"enum": [None, *values]}
    components["Completions"]["properties"]["prompt"] = PROMPT
    components["Completions"]["required"] = ["prompt"]
    messages = {"type": "array", "items": MESSAGE, "minItems": 1}
    components["Chat"]["properties"]["messages"] = messages
    components["Chat"]["required"] = ["messages"]
    components["Error"] = _error()
    components["Answer"] = _answer()
    model = {"type": "object", "required": ["id", "object", "created", "owned_by"]}
    models = _object(object={"const": "list"}, data={"type": "array", "items": model})
    named = {
        "name": "name",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
        "example": names[0],
    }
    paths: Schema = {
        "/v1/chat/completions": {"post": _post("Answer messages.", chat)},
        "/v1/completions": {"post": _post("Go on with a text.", completions)},
        "/v1/models": {"get": _get("The models.", models)},
        "/v1/models/{name}": {"get": _get("One model.", model, 404), "parameters": [named]},
        "/healthz": {"get": _get("Is the process alive?", {"type": "object"})},
        "/readyz": {"get": _get("Does the server take requests?", {"type": "object"})},
        "/metrics": {"get": _get("Metrics for Prometheus.", {"type": "string"}, kind="text/plain")},
        "/openapi.json": {"get": _get("This document.", {"type": "object"})},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"The language model {names[0]!r}, served by Equipoise",
            "version": __version__,
        },
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
        "paths": paths,
    }


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _error() -> Schema:
    """OpenAI's envelope of an error, and the short form of a refusal before a request is read."""
    text, maybe = {"type": "string"}, {"type": ["string", "null"]}
    return {
        "anyOf": [
            _object(error=_object(message=text, type=text, param=maybe, code=maybe)),
            _object(error=text),
        ]
    }


def _answer() -> Schema:
    text, count = {"type": "string"}, {"type": "integer", "minimum": 0}
    choice = _object(index=count, finish_reason={"enum": ["stop", "length"]})
    return _object(
        id=text,
        object={"enum": ["chat.completion", "text_completion"]},
        created=count,
        model=text,
        system_fingerprint=text,
        choices={"type": "array", "items": choice, "minItems": 1},
        usage=_object(prompt_tokens=count, completion_tokens=count, total_tokens=count),
    )


def _post(summary: str, request: Schema) -> Schema:
    json = "application/json"
    done = {
        json: {"schema": {"$ref": REFERENCE.format(name="Answer")}},
        "text/event-stream": {"schema": _object(data={"type": "string"})},
    }
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {json: {"schema": request}}},
        "responses": _responses("The answer, or its events with stream.", done, ASKED),
    }


def _get(summary: str, schema: Schema, *statuses: int, kind: str = "application/json") -> Schema:
    return {
        "summary": summary,
        "responses": _responses("Done.", {kind: {"schema": schema}}, statuses),
    }


def _responses(what: str, content: Schema, statuses: tuple[int, ...]) -> Schema:
    error = {"application/json": {"schema": {"$ref": REFERENCE.format(name="Error")}}}
    refused = {
        str(status): {"description": SAID[status], "content": error}
        for status in sorted({*statuses, *ANY})
    }
    return {"200": {"description": what, "content": content}, **refused}
