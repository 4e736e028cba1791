"""Files of preferences: pairs of chosen and rejected texts as TRL and OpenRLHF read them, and the
pairwise tasks of Label Studio.

TRL: https://huggingface.co/docs/trl/dataset_formats. Label Studio:
https://labelstud.io/guide/task_format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

from equipoise.feedback.items import checked_text, digest, text_bytes, write
from equipoise.feedback.records import Answer, GivenAnswer, Message, Pair, Query, Text
from equipoise.feedback.store import LONGEST_LATENCY_S, Store, check_name
from equipoise.files import BOM, parse_json, read_bounded
from equipoise.hints import shortened

Format = Literal["trl", "openrlhf", "label-studio"]
FORMATS: tuple[Format, ...] = get_args(Format)
Json: TypeAlias = Mapping[str, object]
LARGEST = 1 << 30  # bytes of a file
LARGEST_LINE = 8 << 20  # bytes of a line
MOST_ANNOTATIONS = 1000  # of a task
UNKNOWN = "import"  # annotator of a line without one
STUDIO = "label-studio:"  # before the number of an annotator whom Label Studio numbers
# Names of the two texts of a task, for a file whose result does not name them.
SIDES = (("text1", "text2"), ("answer1", "answer2"), ("response1", "response2"), ("left", "right"))


def read_pairs(path: Path) -> list[Pair]:
    """Read the pairs of a file; ValueError names the first line or task that is wrong.

    A file that begins with "[" has tasks of Label Studio, another one has pairs of TRL or OpenRLHF,
    one a line.
    """
    data = read_bounded(path, LARGEST)
    start = data.removeprefix(BOM).lstrip()[:1]
    pairs = list(_tasks(data, path) if start == b"[" else _lines(data, path))
    if not pairs:
        raise ValueError(f"{path}: must have at least one pair, got none")
    return pairs


def import_file(store: Store, path: Path) -> tuple[int, int]:
    """Add the pairs and the answers of a file to a store -> (new queries, new answers).

    If a line or a task is wrong, nothing is added.
    """
    return store.import_pairs(read_pairs(path))


def export_file(store: Store, path: Path, format_: str) -> tuple[int, int]:
    """Write the answers about texts to a file -> (answers written, answers left out).

    "trl" and "openrlhf" have no form for an answer that chooses neither side, so it is left out.
    """
    if format_ not in FORMATS:
        raise ValueError(f"format: must be one of {', '.join(FORMATS)}, got {format_!r}")
    _check_target(store, path)
    answers: dict[int, list[Answer]] = {}
    for answer in store.answers():
        answers.setdefault(answer.query, []).append(answer)
    queries = [one for one in store.queries() if one.kind == "text"]
    texts = [one for one in queries if one.id in answers or format_ == "label-studio"]
    written, lines = 0, list[object]()
    for query in texts:
        given = answers.get(query.id, [])
        if format_ == "label-studio":
            lines.append(_task(store, query, given))
            written += len(given)
            continue
        for answer in given:
            if answer.choice in ("left", "right"):
                lines.append(_line(store, query, answer, format_))
                written += 1
    if format_ == "label-studio":
        said = json.dumps(lines, ensure_ascii=False, indent=1) + "\n"
    else:
        said = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines)
    write(path, said.encode())
    return written, sum(map(len, answers.values())) - written


def _check_target(store: Store, path: Path) -> None:
    """ValueError for a path that is no new or old file, or of the store itself."""
    if not path.parent.is_dir():
        raise ValueError(f"{path}: must be a file in a folder that exists, got none")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: must be a file to write, got another kind of file")
    if path.resolve().is_relative_to(store.path.resolve()):
        raise ValueError(f"{path}: must be outside of the store, got a place in {store.path}")


# ----------------------------------------------------------------------------- chosen and rejected


def _lines(data: bytes, path: Path) -> Iterator[Pair]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if len(line) > LARGEST_LINE:
            raise ValueError(
                f"{where}: must have at most {LARGEST_LINE:,} bytes, got {len(line):,}"
            )
        yield _pair(_object(parse_json(line, path, number), where), where)


def _pair(said: Json, where: str) -> Pair:
    """Return the pair of a line; its sides follow from the hashes of its texts."""
    for key in ("chosen", "rejected"):
        if key not in said:
            raise ValueError(f"{where}: must have the key {key}, got {shortened(repr(said))}")
    chosen = checked_text(said["chosen"], f"{where}: chosen")
    rejected = checked_text(said["rejected"], f"{where}: rejected")
    given = said.get("prompt")
    prompt = None if given is None else checked_text(given, f"{where}: prompt")
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise ValueError(f"{where}: chosen and rejected must both be texts, or both messages")
    if isinstance(chosen, list) and isinstance(rejected, list):
        prompt, chosen, rejected = _split_chat(prompt, chosen, rejected, where)
    elif isinstance(prompt, list):
        raise ValueError(f"{where}: prompt must be a text as chosen is, got messages")
    best, other = text_bytes(chosen, f"{where}: chosen"), text_bytes(rejected, f"{where}: rejected")
    if best == other:
        raise ValueError(
            f"{where}: rejected must differ from chosen, got {shortened(repr(rejected))} for both"
        )
    answer = GivenAnswer(
        _annotator(said.get("annotator", UNKNOWN), f"{where}: annotator"),
        "left" if (first := digest(best) < digest(other)) else "right",
        latency_s=_latency(said.get("latency_s"), f"{where}: latency_s"),
        time=_time(said.get("time"), f"{where}: time"),
    )
    left, right = (best, other) if first else (other, best)
    begun = None if prompt is None else text_bytes(prompt, f"{where}: prompt")
    return Pair(begun, left, right, (answer,))


def _split_chat(
    prompt: Text | None, chosen: list[Message], rejected: list[Message], where: str
) -> tuple[list[Message], list[Message], list[Message]]:
    """Return the prompt and the two answers of chats, which may hold the prompt themselves."""
    shared = 0
    while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
        shared += 1
    if any(one[shared]["role"] in ASKING for one in (chosen, rejected)):
        asked = " and ".join(shortened(repr(x[shared]["content"])) for x in (chosen, rejected))
        raise ValueError(
            f"{where}: chosen and rejected must answer one prompt, got the messages {asked}; try a "
            "pair for each prompt"
        )
    own = chosen[:shared] if chosen[0]["role"] in ASKING else []
    if isinstance(prompt, list) and own and own[: len(prompt)] != prompt:
        raise ValueError(f"{where}: chosen must begin with prompt, got another prompt in it")
    if isinstance(prompt, str) and (not own or prompt not in [one["content"] for one in own]):
        raise ValueError(
            f"{where}: chosen must be messages that hold prompt, got {shortened(repr(prompt))} "
            "elsewhere"
        )
    if isinstance(prompt, list) and not own:
        return prompt, chosen, rejected
    if not own:
        raise ValueError(f"{where}: must have a prompt, got answers without one")
    return own, chosen[len(own) :], rejected[len(own) :]


ASKING = ("system", "developer", "user")  # roles of a prompt


def _line(store: Store, query: Query, answer: Answer, format_: Format) -> Json:
    """Return the line of an answer; chats of OpenRLHF hold the prompt, since it joins no keys."""
    left, right = store.text(query.left), store.text(query.right)
    chosen, rejected = (left, right) if answer.choice == "left" else (right, left)
    prompt = None if query.prompt is None else store.text(query.prompt)
    said: dict[str, object] = {}
    if isinstance(prompt, list) and isinstance(chosen, str) and isinstance(rejected, str):
        chosen, rejected = _assistant(chosen), _assistant(rejected)
    if isinstance(prompt, str) and isinstance(chosen, list):
        prompt = [{"role": "user", "content": prompt}]
    if format_ == "openrlhf" and isinstance(prompt, list):
        chosen = [*prompt, *cast(list[Message], chosen)]
        rejected = [*prompt, *cast(list[Message], rejected)]
    elif prompt is not None:
        said["prompt"] = prompt
    said |= {"chosen": chosen, "rejected": rejected, "annotator": answer.annotator}
    said |= {"time": _iso(answer.time)}
    return said if answer.latency_s is None else said | {"latency_s": answer.latency_s}


def _assistant(text: str) -> list[Message]:
    return [{"role": "assistant", "content": text}]


# ------------------------------------------------------------------------------------ Label Studio


def _tasks(data: bytes, path: Path) -> Iterator[Pair]:
    found = parse_json(data, path)
    for number, said in enumerate(found if isinstance(found, list) else [found], 1):
        where = f"{path}, task {number}"
        task = _object(said, where)
        inner = _object(task.get("data"), f"{where}: data")
        given = task.get("annotations", [])
        if not isinstance(given, list) or len(given) > MOST_ANNOTATIONS:
            raise ValueError(
                f"{where}: annotations must be a list of at most {MOST_ANNOTATIONS:,}, got "
                f"{shortened(repr(given))}"
            )
        annotations = [_object(one, f"{where}: annotations[{i}]") for i, one in enumerate(given)]
        left, right = _sides(inner, annotations, where)
        texts = [
            text_bytes(checked_text(inner[key], f"{where}: {key}"), f"{where}: {key}")
            for key in (left, right, *(["prompt"] if inner.get("prompt") is not None else []))
        ]
        if texts[0] == texts[1]:
            raise ValueError(
                f"{where}: {right} must differ from {left}, got {shortened(repr(inner[right]))}"
            )
        answers = [
            _annotation(one, f"{where}: annotations[{i}]") for i, one in enumerate(annotations)
        ]
        yield Pair(texts[2] if len(texts) == 3 else None, texts[0], texts[1], tuple(answers))


def _sides(data: Json, annotations: list[Json], where: str) -> tuple[str, str]:
    """Return the keys of the two texts, by the names of a result or known names."""
    named = []
    for annotation in annotations:
        for result in _results(annotation, where):
            to = result.get("to_name")
            if result.get("type") == "pairwise" and isinstance(to, str) and to.count(",") == 1:
                left, _, right = to.partition(",")
                named.append((left.strip(), right.strip()))
    for left, right in (*named, *SIDES):
        if left in data and right in data:
            return left, right
    raise ValueError(
        f"{where}: data must have two texts, such as text1 and text2, got "
        f"{shortened(', '.join(map(str, data)))}"
    )


def _results(annotation: Json, where: str) -> list[Json]:
    found = annotation.get("result", [])
    if not isinstance(found, list):
        raise ValueError(f"{where}: result must be a list, got {shortened(repr(found))}")
    return [_object(one, f"{where}: result") for one in found]


def _annotation(said: Json, where: str) -> GivenAnswer:
    choice: Literal["left", "right", "equal", "cannot_tell"] | None = None
    for result in _results(said, where):
        value = _object(result.get("value", {}), f"{where}: value")
        if result.get("type") == "pairwise":
            selected = value.get("selected")
            if selected != "left" and selected != "right":
                raise ValueError(
                    f"{where}: selected must be left or right, got {shortened(repr(selected))}"
                )
            choice = "left" if selected == "left" else "right"
        elif result.get("type") == "choices" and value.get("choices") == ["equal"]:
            choice = "equal"
    if said.get("was_cancelled") is True:
        choice = "cannot_tell"
    if choice is None:
        raise ValueError(
            f"{where}: must have a result of the type pairwise, got {shortened(repr(dict(said)))}"
        )
    by = said.get("completed_by", UNKNOWN)
    if isinstance(by, dict):
        by = by.get("email") or by.get("id")
    if isinstance(by, int) and not isinstance(by, bool):
        by = f"{STUDIO}{by}"
    return GivenAnswer(
        _annotator(by, f"{where}: completed_by"),
        choice,
        swapped=False,
        latency_s=_latency(said.get("lead_time"), f"{where}: lead_time"),
        time=_time(said.get("created_at"), f"{where}: created_at"),
    )


def _task(store: Store, query: Query, answers: list[Answer]) -> Json:
    data: dict[str, Text] = {"text1": store.text(query.left), "text2": store.text(query.right)}
    if query.prompt is not None:
        data["prompt"] = store.text(query.prompt)
    return {"id": query.id, "data": data, "annotations": [_written(one) for one in answers]}


def _written(answer: Answer) -> Json:
    result: list[Json] = []
    if answer.choice in ("left", "right"):
        to = {"from_name": "pairwise", "to_name": "text1,text2", "type": "pairwise"}
        result = [to | {"value": {"selected": answer.choice}}]
    elif answer.choice == "equal":
        to = {"from_name": "tie", "to_name": "text1", "type": "choices"}
        result = [to | {"value": {"choices": ["equal"]}}]
    number = answer.annotator.removeprefix(STUDIO)
    numbered = number != answer.annotator and number.isdecimal()
    return {
        "id": answer.row,
        "completed_by": int(number) if numbered else {"email": answer.annotator},
        "result": result,
        "was_cancelled": answer.choice == "cannot_tell",
        "created_at": _iso(answer.time),
        "lead_time": answer.latency_s,
    }


# ------------------------------------------------------------------------------------------ values


def _object(value: object, where: str) -> Json:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: must be a JSON object, got {shortened(repr(value))}")
    return value


def _annotator(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: must be a name, got {shortened(repr(value))}")
    return check_name(value, where)


def _latency(value: object, where: str) -> float | None:
    if value is None:
        return None
    right = isinstance(value, int | float) and not isinstance(value, bool)
    if not right or not 0 <= cast(float, value) <= LONGEST_LATENCY_S:
        raise ValueError(
            f"{where}: must be 0 to {LONGEST_LATENCY_S:,.0f} seconds, got {shortened(repr(value))}"
        )
    return float(cast(float, value))


def _time(value: object, where: str) -> float | None:
    """Return the seconds since 1970 of a time in ISO 8601; one without a zone is in UTC."""
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value if isinstance(value, str) else "")
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        seconds = found.timestamp()
        _iso(seconds)  # at the ends of the calendar another zone may have a time that UTC lacks
        return seconds
    except (ValueError, OverflowError):
        raise ValueError(
            f"{where}: must be a time such as 2026-01-31T12:00:00Z, got {shortened(repr(value))}"
        ) from None


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
