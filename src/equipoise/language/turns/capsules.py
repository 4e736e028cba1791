"""Capsules of conversations: the turns of a conversation up to the failure of its partner, as one
JSON file, so that they can be said again.

The partner gets the same row and the same turns of the model; what it answers may differ.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from equipoise import schema, trust
from equipoise.files import LARGEST_JSON, parse_json, read_bounded
from equipoise.foreign import Foreign
from equipoise.language import capsule_files
from equipoise.language.turns import openenv, partner, verifiers
from equipoise.language.turns.partner import Dialogue, Partner, WrongAnswer
from equipoise.language.turns.steps import Failure, Steps
from equipoise.types.packed import Example, Prompt

FORMAT, KIND = 1, "conversation"
LOOK_S = 0.1
SCHEMA: dict[str, schema.Schema] = {
    "format": schema.Number(FORMAT, FORMAT, whole=True),
    "conversation": schema.Text(1000),
    "arguments": schema.Each(schema.Anything()),
    "signature?": schema.Maybe(schema.Text(64)),
    "error": schema.Text(),
    "deadline_s": schema.Number(0),
    "answer_bytes": schema.Number(1, whole=True),
    "row": schema.Each(schema.Anything()),
    "prompt": schema.Anything(),
    "turns": schema.Items(schema.Text()),
    "written": schema.Text(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsCapsule:
    """A conversation up to the failure of its partner."""

    partner: str  # module:Class, or the name of a world
    arguments: Mapping[str, object]  # of the task, which a world needs
    error: str
    deadline_s: float
    answer_bytes: int
    row: Mapping[str, object]
    prompt: Prompt
    turns: Sequence[str]  # of the model


@dataclass(frozen=True, slots=True)
class Replayed:
    """The failure of then, and what came now."""

    capsule: TurnsCapsule
    now: str  # the error; "": there is none


def maker(name: str, arguments: Mapping[str, object], deadline_s: float) -> Callable[[], Partner]:
    """Return what makes partners by the name that a task has for them."""
    if name.startswith(openenv.PREFIX):
        return openenv.World.of(name, arguments, deadline_s).partner
    if name.startswith(verifiers.PREFIX):
        return verifiers.World.of(name, arguments).partner
    return partner.load(name)


def write(directory: Path, capsule: TurnsCapsule) -> Path | None:
    """Write the capsule; None at the limit of its partner, or if the disk is full."""
    names = trust.of_text(capsule.partner, [])
    data = {
        "format": FORMAT,
        "conversation": capsule.partner,
        "arguments": dict(capsule.arguments),
        "signature": trust.sign(names, _signed(capsule), make=True) if names else None,
        "error": capsule.error,
        "deadline_s": capsule.deadline_s,
        "answer_bytes": capsule.answer_bytes,
        "row": dict(capsule.row),
        "prompt": capsule.prompt,
        "turns": list(capsule.turns),
    }
    return capsule_files.write(directory, KIND, capsule.partner, data)


def keeper(
    folder: Path, name: str, arguments: Mapping[str, object], limits: tuple[float, int]
) -> Callable[[Example, Sequence[str], str], object]:
    """Return what writes the capsules of a task's conversations: of an example, the turns of the
    model and the error. ``limits``: seconds of a step, and bytes of an answer.
    """
    deadline_s, answer_bytes = limits
    return lambda example, turns, error: write(
        folder,
        TurnsCapsule(
            partner=name,
            arguments=arguments,
            error=error,
            deadline_s=deadline_s,
            answer_bytes=answer_bytes,
            row=example.columns,
            prompt=example.prompt,
            turns=turns,
        ),
    )


def _signed(capsule: TurnsCapsule) -> object:
    return [capsule.partner, dict(capsule.arguments)]


def is_one(path: Path) -> bool:
    """Is this file a capsule of a conversation, and not of a reward?"""
    data = parse_json(read_bounded(path, LARGEST_JSON), path, finite=False)
    return isinstance(data, Mapping) and KIND in data


def read(path: Path, trusted: Sequence[str] = ()) -> TurnsCapsule:
    """Read a capsule and check it; ValueError names the fault, Untrusted the import that it needs.

    ``trusted``: modules and ``module:Class`` that the user vouches for (``trust.py``).
    """
    data: Foreign = parse_json(read_bounded(path, LARGEST_JSON), path, finite=False)
    schema.check(data, SCHEMA, str(path))
    capsule = TurnsCapsule(
        partner=data["conversation"],
        arguments=data["arguments"],
        error=data["error"],
        deadline_s=data["deadline_s"],
        answer_bytes=data["answer_bytes"],
        row=data["row"],
        prompt=data["prompt"],
        turns=data["turns"],
    )
    names = trust.of_text(capsule.partner, [])
    trust.check(names, _signed(capsule), data.get("signature"), trusted, path)
    return capsule


def replay(path: Path, trusted: Sequence[str] = ()) -> Replayed:
    """Say the turns of a capsule again to a new partner; ``Untrusted`` if not vouched for."""
    capsule = read(path, trusted)
    make = maker(capsule.partner, capsule.arguments, capsule.deadline_s)
    dialogue = Dialogue(make, capsule.row, capsule.prompt)
    chat = not isinstance(capsule.prompt, str)
    steps = Steps(capsule.deadline_s)
    try:
        for text in capsule.turns:
            found = _step(steps, lambda settle, text=text: dialogue.step(text, settle))  # type: ignore[misc]
            if isinstance(found, Failure):
                return Replayed(capsule, found.error)
            try:
                answer = partner.answer(found, chat=chat, most=capsule.answer_bytes)
            except WrongAnswer as error:
                return Replayed(capsule, str(error))
            if answer.messages is None:
                break
    finally:
        if dialogue.ends:
            _step(steps, dialogue.end)
        steps.close()
    return Replayed(capsule, "")


def _step(steps: Steps, call: Callable[[Foreign], object]) -> object:
    steps.submit(0, call)
    while not (found := steps.poll()):
        select.select(steps.fds(), [], [], LOOK_S)
    return found[0][1]
