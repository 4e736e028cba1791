"""The OpenAPI document of the server, made from the messages themselves and from the spaces of the
policy.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from equipoise.edge import branches
from equipoise.serving import oip
from equipoise.serving.messages import Act, Decision, End, Outcome
from equipoise.serving.service import Service
from equipoise.serving.version import Version

BOTH = ("application/json", "application/msgpack")
STATUSES = {
    400: "Not a request as this document has it: the sentence has the path, what was expected and "
    "what came.",
    401: "The token is missing or wrong.",
    403: "The Host or the Origin is not allowed.",
    404: "No such path, version or open episode.",
    405: "Another method; the header Allow has the right one.",
    408: "The request took too long to arrive.",
    409: "The episode began with another version.",
    413: "A larger body, or more values in it, than the server takes.",
    415: "Another Content-Type, charset or Content-Encoding.",
    429: "All places for open episodes are taken.",
    431: "More headers than the server takes.",
    500: "A fault of the server.",
    501: "The server keeps no decisions.",
    503: "Too many connections, or not ready.",
    507: "The disk takes no more; nothing was stored.",
}
ANY = (400, 401, 403, 405, 408, 431, 500, 503)  # of every path
ASKED = (400, 404, 409, 413, 415, 429)  # of a decision
Schema = dict[str, Any]


def openapi(service: Service) -> Schema:
    """OpenAPI 3.1. The observation and the action are those of the champion."""
    from equipoise import __version__

    kinds = [Act, Decision, Outcome, End]
    (act, decision, outcome, end), components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    version = service.versions.now.champion
    spec = version.model.spec
    policy = spec["policies"][spec["artifact"]["policy"]]
    arrays = 'In msgpack an array may also be a map of "dtype", "shape" and "data".'
    components["Act"]["properties"]["obs"] = schema(policy["observation"]) | {
        "description": f"One observation. {arrays}"
    }
    components["Decision"]["properties"]["action"] = schema(policy["action"]) | {
        "description": "What env.step takes."
    }
    components["Error"] = {
        "type": "object",
        "properties": {"error": {"type": "string"}},
        "required": ["error"],
    }
    components["Inference"] = _inference(version)
    plain, outcomes = (
        {"type": "object"},
        {"oneOf": [outcome, {"type": "array", "items": outcome, "maxItems": 10_000}]},
    )
    model = f"/v2/models/{service.versions.policy}"
    infer = _post(
        "Inference by the Open Inference Protocol.", _ref("Inference"), plain, ASKED, BOTH[:1]
    )
    described = _get("The policy as the Open Inference Protocol describes a model.", missing=True)
    ready = _get("Does the server take requests for this model?", missing=True)
    paths: Schema = {
        "/v1/act": {"post": _post("Decide for one observation.", act, decision, ASKED)},
        "/v1/outcome": {
            "post": _post(
                "Store what became of decisions.", outcomes, plain, (400, 413, 415, 501, 507)
            )
        },
        "/v1/end": {
            "post": _post("End the episode of a session.", end, plain, (400, 404, 413, 415))
        },
        "/": {"get": _get("A page with the version, a form and a curl line.", "text/html")},
        "/healthz": {"get": _get("Is the process alive?")},
        "/readyz": {
            "get": _get("Does the server take requests? With its versions and its alarms.")
        },
        "/metrics": {"get": _get("Metrics for Prometheus.", "text/plain")},
        "/v2": {"get": _get("The server as the Open Inference Protocol describes one.")},
        "/v2/health/live": {"get": _get("Is the process alive?")},
        "/v2/health/ready": {"get": _get("Does the server take requests?")},
        model: {"get": described},
        f"{model}/ready": {"get": ready},
        f"{model}/infer": {"post": infer},
    }
    named = {
        "name": "version",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": 256},
    }
    for tail, item in (
        ("", {"get": described}),
        ("/ready", {"get": ready}),
        ("/infer", {"post": infer}),
    ):
        paths[f"{model}/versions/{{version}}{tail}"] = {**item, "parameters": [named]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"The policy {service.versions.policy!r}, served by Equipoise",
            "version": __version__,
        },
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
        "paths": paths,
    }


def schema(space: Any) -> Schema:
    """The JSON schema of a value of a space, as ``spec.json`` has it."""
    if (inner := branches(space)) is not None:
        parts = {key: schema(one) for key, one in inner.items()}
        if space["type"] == "Tuple":
            return {
                "type": "array",
                "prefixItems": list(parts.values()),
                "minItems": len(parts),
                "maxItems": len(parts),
            }
        return {
            "type": "object",
            "properties": parts,
            "required": list(parts),
            "additionalProperties": False,
        }
    kind, dtype = space["type"], np.dtype(space.get("dtype", "int8"))
    if kind == "Discrete":
        return {
            "type": "integer",
            "minimum": space["start"],
            "maximum": space["start"] + space["n"] - 1,
        }
    if kind == "MultiBinary":
        number, shape = (
            {"type": "integer", "minimum": 0, "maximum": 1},
            np.ravel(space["n"]).tolist(),
        )
    elif kind == "MultiDiscrete":
        number, shape = _number(dtype), list(np.shape(space["nvec"]))
    else:
        number, shape = _number(dtype), space["shape"]
    for size in reversed(shape):
        number = {"type": "array", "items": number, "minItems": size, "maxItems": size}
    return number


def _number(dtype: np.dtype) -> Schema:
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        return {"type": "number", "minimum": -most, "maximum": most}
    limits = np.iinfo("int8") if dtype.kind == "b" else np.iinfo(dtype)
    return (
        {"type": "boolean"}
        if dtype.kind == "b"
        else {"type": "integer", "minimum": limits.min, "maximum": limits.max}
    )


def _inference(version: Version) -> Schema:
    """The JSON part of a request of the protocol."""
    tensors = [
        {
            "type": "object",
            "required": ["name", "shape", "datatype"],
            "properties": {
                "name": {"const": name},
                "datatype": {"enum": list(oip.KINDS)},
                "data": {"type": "array"},
                "shape": {
                    "type": "array",
                    "minItems": 1 + len(shape),
                    "maxItems": 1 + len(shape),
                    "prefixItems": [
                        {"type": "integer", "minimum": 1, "maximum": oip.MOST_ROWS},
                        *({"const": size} for size in shape),
                    ],
                },
                "parameters": {
                    "type": "object",
                    "properties": {"binary_data_size": {"type": "integer", "minimum": 0}},
                },
            },
        }
        for name, (shape, _) in version.rows.items()
    ]
    outputs = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"enum": [name for name, _, _ in oip.outputs(version)]}},
    }
    return {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "id": {"type": "string", "maxLength": 256},
            "parameters": msgspec.json.schema(oip.Parameters)["$defs"]["Parameters"],
            "inputs": {
                "type": "array",
                "prefixItems": tensors,
                "minItems": len(tensors),
                "maxItems": len(tensors),
            },
            "outputs": {"type": "array", "items": outputs, "uniqueItems": True},
        },
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _post(
    summary: str,
    request: Schema,
    answer: Schema,
    statuses: tuple[int, ...],
    kinds: tuple[str, ...] = BOTH,
) -> Schema:
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {kind: {"schema": request} for kind in kinds}},
        "responses": _responses(_content("Done.", answer, kinds), statuses),
    }


def _get(summary: str, kind: str = BOTH[0], missing: bool = False) -> Schema:
    answer = _content("Done.", {"type": "object" if kind == BOTH[0] else "string"}, (kind,))
    return {"summary": summary, "responses": _responses(answer, (404,) if missing else ())}


def _responses(done: Schema, statuses: tuple[int, ...]) -> Schema:
    """The responses of a path: the answer, and a refusal for each of these statuses and of those of
    every path.
    """
    refused = {
        str(status): _content(STATUSES[status], _ref("Error"))
        for status in sorted({*statuses, *ANY})
    }
    return {"200": done, **refused}


def _content(what: str, schema: Schema, kinds: tuple[str, ...] = BOTH[:1]) -> Schema:
    return {"description": what, "content": {kind: {"schema": schema} for kind in kinds}}
