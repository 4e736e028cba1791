"""The Open Inference Protocol (``/v2``), with its extensions for binary tensors and for sequences.

Inputs are named ``obs`` or ``obs/PATH`` [B, ...], outputs ``action`` or ``action/PATH`` [B, ...]
and, if the policy gives it, ``propensity`` [B] (-1: unknown). Parameters of a request:
``sequence_id``, ``sequence_start``, ``sequence_end`` (an episode, B = 1), ``deterministic``
(default true), ``unit``, ``deadline_ms``, ``binary_data_output``.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from equipoise import tree
from equipoise.edge import branches, escaped
from equipoise.hints import hint
from equipoise.serving import bounds, messages
from equipoise.serving.messages import Deadline, Decision, Name, Refused, Text
from equipoise.serving.service import Service
from equipoise.serving.version import Version
from equipoise.serving.waiting import Answer

Array = np.ndarray
Read = Callable[[dict[bytes, bytes], Any], Awaitable[bytes]]
KINDS = {
    "BOOL": "bool",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
NAMES = {dtype: kind for kind, dtype in KINDS.items()}
MOST_ROWS = 4096  # of a request
MOST_NUMBERS = 1 << 17  # of an answer
PIECE = 256  # rows that are asked at once: between two pieces the loop has time for other callers
Size = Annotated[list[int], msgspec.Meta(max_length=64)]
LARGEST = 1 << 62  # of a dimension, and of a sequence's number
PARTS = 1024  # tensors of a request
SPLIT = "Inference-Header-Content-Length"  # bytes of JSON before the binary tensors


class Parameters(msgspec.Struct):
    """Parameters of a request; clients may send others, which mean nothing here."""

    sequence_id: int | Text = 0
    sequence_start: bool = False
    sequence_end: bool = False
    deterministic: bool = True
    unit: Name | None = None
    deadline_ms: Deadline | None = None
    binary_data_output: bool = False


class OfTensor(msgspec.Struct):
    """Parameters of a tensor."""

    binary_data_size: int | None = None
    binary_data: bool | None = None


class Input(msgspec.Struct):
    """A tensor that is given."""

    name: Text
    shape: Size
    datatype: Text
    data: list[Any] | None = None
    parameters: OfTensor = msgspec.field(default_factory=OfTensor)


class Output(msgspec.Struct):
    """A tensor that is asked for."""

    name: Text
    parameters: OfTensor = msgspec.field(default_factory=OfTensor)


class Infer(msgspec.Struct):
    """The JSON part of a request."""

    inputs: list[Input]
    outputs: list[Output] | None = None
    id: Text | None = None
    parameters: Parameters = msgspec.field(default_factory=Parameters)


_decoder = msgspec.json.Decoder(Infer)


def routes(service: Service, read: Read) -> list[BaseRoute]:
    """The paths of the protocol; ``read`` reads a body within its bounds."""
    policy = service.versions.policy

    def version_of(request: Request) -> Version:
        name = request.path_params["name"]
        if name != policy:
            raise Refused(
                404, f"model: expected {policy!r}, got {bounds.shown(name)}{hint(name, [policy])}"
            )
        return service.versions.find(request.path_params.get("version"))

    async def server(request: Request) -> Response:
        from equipoise import __version__

        said = {
            "name": "equipoise",
            "version": __version__,
            "extensions": ["binary_tensor_data", "sequence"],
        }
        return _json(said)

    async def live(request: Request) -> Response:
        return _json({"live": True})

    async def ready(request: Request) -> Response:
        if "name" in request.path_params:
            # of a version that is named: it is served, also where no champion is
            version_of(request)
            ready = not service.draining
        else:
            ready = service.ready
        return _json({"ready": ready}, 200 if ready else 503)

    async def metadata(request: Request) -> Response:
        version = version_of(request)
        digests = dict.fromkeys(one.digest for one in service.versions.now.by_alias.values())
        given = [
            {"name": name, "datatype": kind, "shape": [-1, *shape]}
            for name, kind, shape in outputs(version)
        ]
        inputs = [
            {"name": name, "datatype": NAMES[dtype.name], "shape": [-1, *shape]}
            for name, (shape, dtype) in version.rows.items()
        ]
        return _json(
            {
                "name": policy,
                "versions": list(digests),
                "platform": "onnxruntime_onnx",
                "inputs": inputs,
                "outputs": given,
            }
        )

    async def infer(request: Request) -> Response:
        version = version_of(request)
        asked, rest = _parts(request, await read(request.scope["headers_by_name"], request.receive))
        obs = _obs(version, _tensors(asked.inputs, rest))
        wanted = (
            [Output(name) for name, _, _ in outputs(version)]
            if asked.outputs is None
            else asked.outputs
        )
        known = [name for name, _, _ in outputs(version)]
        if len({output.name for output in wanted}) < len(wanted):
            raise Refused(400, "outputs: expected each name once, got one of them again")
        for output in wanted:
            if output.name not in known:
                raise Refused(
                    400,
                    f"outputs: expected some of {', '.join(known)}, got "
                    f"{output.name!r}{hint(output.name, known)}",
                )
        decisions = await _decide(
            service, version, obs, asked.parameters, "version" in request.path_params
        )
        return _answer(policy, asked, wanted, decisions, version)

    paths: list[tuple[str, Any, str]] = [
        ("/v2", server, "GET"),
        ("/v2/health/live", live, "GET"),
        ("/v2/health/ready", ready, "GET"),
    ]
    for base in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        paths += [
            (base, metadata, "GET"),
            (f"{base}/ready", ready, "GET"),
            (f"{base}/infer", infer, "POST"),
        ]
    return [Route(path, run, methods=[method]) for path, run, method in paths]


def kind(path: str) -> str:
    """The name under which a path of the protocol is counted: without models and versions, which
    callers choose.
    """
    if not path.startswith("/v2"):
        return "other"
    last = path.rpartition("/")[2]
    return f"/v2/{last}" if last in ("infer", "ready", "live") else "/v2"


async def _decide(
    service: Service, version: Version, obs: object, given: Parameters, named: bool
) -> list[Decision]:
    session, episode = str(given.sequence_id) if given.sequence_id else None, None
    if session is not None and not given.sequence_start:
        episode = service.sessions.find(session)
        if named and version is not episode.main.version:
            raise Refused(
                409,
                f"version: expected {episode.main.version.digest[:12]}, with which the sequence "
                "began, got another",
            )
        version = episode.main.version
    rows, single = service.read(version, obs)
    most = max(
        1,
        min(
            MOST_ROWS,
            MOST_NUMBERS // max(1, sum(math.prod(shape) for _, _, shape in outputs(version))),
        ),
    )
    count = len(next(iter(rows.values())))
    if single or count > most or (session is not None and count != 1):
        expected = (
            "[1, ...] in a sequence"
            if session is not None
            else f"[B, ...] with B of at most {most}"
        )
        shapes = {name: list(x.shape[1:] if single else x.shape) for name, x in rows.items()}
        raise Refused(400, f"inputs: expected shapes {expected}, got {shapes}")
    decisions: list[Decision] = []
    limit, began = service.limit_ms(given.deadline_ms), time.monotonic()
    for at in range(0, count, PIECE):
        if at:
            await asyncio.sleep(0)
        answer = Answer()
        service.ask(
            version,
            {name: x[at : at + PIECE] for name, x in rows.items()} if count > PIECE else rows,
            answer,
            session=session,
            episode=episode,
            unit=given.unit,
            deterministic=given.deterministic,
            deadline_ms=None
            if limit is None
            else max(0.001, limit - 1000 * (time.monotonic() - began)),
        )
        if given.sequence_end and session is not None:
            service.sessions.end(session)
        decisions += await answer.get()
    return decisions


def _parts(request: Request, body: bytes) -> tuple[Infer, memoryview]:
    """The JSON part of a body, and the bytes after it."""
    said = request.headers.get(SPLIT)
    size = len(body)
    if said is not None:
        if not (said.isascii() and said.isdecimal() and len(said) < 12 and int(said) <= size):
            raise Refused(
                400, f"{SPLIT}: expected a number of at most {size:,} bytes, got {said[:40]!r}"
            )
        size = int(said)
    asked: Infer = messages.decoded(_decoder, body[:size], bounds.check_json)
    number = asked.parameters.sequence_id
    if isinstance(number, int) and not -LARGEST <= number < 1 << 64:
        raise Refused(400, "parameters: expected a sequence_id of 64 bits, got a longer number")
    return asked, memoryview(body)[size:]


def _tensors(inputs: list[Input], rest: memoryview) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for one in inputs:
        place = f"inputs/{one.name}"
        if one.name in found:
            raise Refused(400, f"{place}: expected each name once, got it twice")
        if one.datatype not in KINDS:
            raise Refused(
                400,
                f"{place}: expected a datatype of {', '.join(KINDS)}, got "
                f"{one.datatype!r}{hint(one.datatype, KINDS)}",
            )
        if len(found) == PARTS:
            raise Refused(400, f"inputs: expected at most {PARTS:,}, got more")
        dtype, size = (
            np.dtype(KINDS[one.datatype]).newbyteorder("<"),
            one.parameters.binary_data_size,
        )
        if (
            min(one.shape, default=0) < 0
            or max(one.shape, default=0) > LARGEST
            or len(one.shape) > 32
        ):
            got = "longer ones" if max(map(abs, one.shape)) > LARGEST else bounds.shown(one.shape)
            raise Refused(400, f"{place}: expected at most 32 sizes of at least 0, got {got}")
        count = math.prod(one.shape)
        if size is not None and one.data is not None:
            raise Refused(400, f"{place}: expected data or binary_data_size, got both")
        try:
            if size is None:
                x = _array([] if one.data is None else bounds.numbers(one.data))
                if x.ndim > 1 and x.shape != tuple(one.shape):
                    raise ValueError(
                        "expected a flat list, or lists of that shape, got lists of the shape "
                        f"{list(x.shape)}"
                    )
                if x.size and (
                    x.dtype.kind not in "biuf" or (dtype.kind != "f" and x.dtype.kind == "f")
                ):
                    raise ValueError(f"expected numbers of {one.datatype}, got others")
                with np.errstate(over="ignore"):  # an infinite value is refused with its place
                    x = (
                        x.astype(dtype)
                        if x.dtype.kind == "f" or dtype.kind in "fb"
                        else _whole(x, dtype)
                    )
            else:
                if not 0 <= size <= len(rest) or size != count * dtype.itemsize:
                    expected = f"{count * dtype.itemsize:,} bytes for {one.datatype} {one.shape}"
                    raise ValueError(
                        f"expected {expected}, got {size:,} announced and {len(rest):,} there"
                    )
                x, rest = np.frombuffer(rest[:size], dtype), rest[size:]
            if x.size != count:
                raise ValueError(f"expected {count:,} numbers, got {x.size:,}")
            found[one.name] = x.reshape(one.shape)
        except (ValueError, OverflowError, TypeError, RecursionError) as error:
            raise Refused(400, f"{place}: expected {one.datatype} {one.shape}: {error}") from None
    if len(rest):
        raise Refused(400, f"body: expected {len(rest):,} bytes less: no input announces them")
    return found


def _array(data: object) -> Array:
    try:
        return np.asarray(data)
    except ValueError:  # NumPy's sentence on lists of different lengths
        raise ValueError(
            "expected a flat list, or lists of that shape, got lists of different lengths"
        ) from None


def _whole(x: Array, dtype: np.dtype) -> Array:
    limits = np.iinfo(dtype)
    if x.size and not limits.min <= int(x.min()) <= int(x.max()) <= limits.max:
        raise ValueError(
            f"expected numbers from {limits.min} to {limits.max}, got {x.min()} to {x.max()}"
        )
    return x.astype(dtype)


def _obs(version: Version, tensors: Mapping[str, Array]) -> object:
    """The observation of the tensors' names."""
    if tensors.keys() != version.rows.keys():
        raise Refused(
            400, f"inputs: expected {', '.join(version.rows)}, got {', '.join(tensors) or 'none'}"
        )
    return tree.within("obs", tensors)


def outputs(version: Version) -> list[tuple[str, str, list[int]]]:
    """Name, datatype and shape, without the batch, of each output."""
    spec = version.model.spec
    found = [
        (name, NAMES[dtype], shape)
        for name, dtype, shape in _leaves(
            spec["policies"][spec["artifact"]["policy"]]["action"], "action"
        )
    ]
    return found if version.model.propensity == "none" else [*found, ("propensity", "FP64", [])]


def _leaves(space: Any, name: str) -> Iterator[tuple[str, str, list[int]]]:
    if (inner := branches(space)) is not None:
        for key, one in inner.items():
            yield from _leaves(one, f"{name}/{escaped(key)}")
        return
    kind = space["type"]
    shape = (
        space["shape"]
        if kind == "Box"
        else []
        if kind == "Discrete"
        else space["nvec"]
        if kind == "MultiDiscrete"
        else space["n"]
    )
    if kind == "MultiDiscrete":
        shape = list(np.shape(shape))
    yield name, space.get("dtype", "int8"), shape if isinstance(shape, list) else [shape]


def _answer(
    policy: str, asked: Infer, wanted: list[Output], decisions: list[Decision], version: Version
) -> Response:
    kinds = {name: (kind, shape) for name, kind, shape in outputs(version)}
    said, blobs = [], []
    for output in wanted:
        kind, shape = kinds[output.name]
        x = np.array([_value(decision, output.name) for decision in decisions], KINDS[kind])
        one: dict[str, object] = {
            "name": output.name,
            "datatype": kind,
            "shape": [len(decisions), *shape],
        }
        binary = output.parameters.binary_data
        if asked.parameters.binary_data_output if binary is None else binary:
            blobs.append(x.astype(x.dtype.newbyteorder("<"), copy=False).tobytes())
            one["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            one["data"] = x.reshape(-1).tolist()
        said.append(one)
    parameters: dict[str, object] = {"decision_id": ",".join(decision.id for decision in decisions)}
    if any(decision.fallback for decision in decisions):
        parameters["fallback"] = ",".join(decision.fallback or "" for decision in decisions)
    answer = {
        "model_name": policy,
        "model_version": decisions[0].version,
        "outputs": said,
        "parameters": parameters,
    }
    if asked.id is not None:
        answer["id"] = asked.id
    head = messages.json.encode(answer)
    if not blobs:
        return Response(head, media_type="application/json")
    return Response(
        head + b"".join(blobs),
        headers={SPLIT: str(len(head))},
        media_type="application/octet-stream",
    )


def _value(decision: Decision, name: str) -> object:
    if name == "propensity":
        return -1.0 if decision.propensity is None else decision.propensity
    value = decision.action
    for key in tree.keys_of(name)[1:]:
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def _json(said: object, status: int = 200) -> Response:
    return Response(messages.json.encode(said), status, media_type="application/json")
