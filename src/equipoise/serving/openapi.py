"""The OpenAPI document of the server, made from the messages themselves."""

from __future__ import annotations

from typing import Any

import msgspec

from equipoise.serving.messages import Act, Decision, End, Outcome
from equipoise.serving.service import Service

BOTH = ("application/json", "application/msgpack")


def openapi(service: Service) -> dict[str, Any]:
    """OpenAPI 3.1. The observation and the action are those of the champion."""
    from equipoise import __version__

    kinds = [Act, Decision, Outcome, End]
    (act, decision, outcome, end), components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    spec = service.versions.now.champion.model.spec
    policy = spec["policies"][spec["artifact"]["policy"]]
    components["Act"]["properties"]["obs"]["description"] = f"An observation of {_said(policy['observation'])}."
    components["Decision"]["properties"]["action"]["description"] = f"An action of {_said(policy['action'])}."
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    plain, outcomes = {"type": "object"}, {"oneOf": [outcome, {"type": "array", "items": outcome}]}
    name = service.versions.policy
    return {
        "openapi": "3.1.0",
        "info": {"title": f"The policy {name!r}, served by Equipoise", "version": __version__},
        "components": {
            "schemas": {**components, "Error": error},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
        "paths": {
            "/v1/act": {"post": _post("Decide for one observation.", act, decision)},
            "/v1/outcome": {"post": _post("Store what became of decisions.", outcomes, plain)},
            "/v1/end": {"post": _post("End the episode of a session.", end, plain)},
            "/healthz": {"get": _get("Is the process alive?")},
            "/readyz": {"get": _get("Does the server take requests? With its versions and its alarms.")},
            "/metrics": {"get": _get("Metrics for Prometheus.", "text/plain")},
            f"/v2/models/{name}": {"get": _get("The policy as the Open Inference Protocol describes a model.")},
            f"/v2/models/{name}/infer": {"post": _post("Inference by the Open Inference Protocol.", plain, plain, BOTH[:1])},
        },
    }  # fmt: skip


def _post(summary: str, request: Any, answer: Any, kinds: tuple[str, ...] = BOTH) -> dict[str, Any]:
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {kind: {"schema": request} for kind in kinds}},
        "responses": {
            "200": _content("Done.", answer, kinds),
            "default": _content("Refused.", {"$ref": "#/components/schemas/Error"}),
        },
    }


def _get(summary: str, kind: str = "application/json") -> dict[str, Any]:
    return {
        "summary": summary,
        "responses": {"200": _content("Done.", {"type": "object" if kind == BOTH[0] else "string"}, (kind,))},
    }


def _content(what: str, schema: Any, kinds: tuple[str, ...] = BOTH[:1]) -> dict[str, Any]:
    return {"description": what, "content": {kind: {"schema": schema} for kind in kinds}}


def _said(space: Any) -> str:
    return str({key: value for key, value in space.items() if key in ("type", "shape", "dtype", "n", "nvec", "spaces")})[:500]
