"""Preferences: rows of two completions of a prompt, of which one was chosen, or of one completion
with a label.

::

    {"prompt": ..., "chosen": ..., "rejected": ...}     a pair; the prompt may be left out
    {"prompt": ..., "completion": ..., "label": true}   a completion that is wanted, or is not

Prompts and completions are texts, or messages as TRL has them. Without a ``prompt`` it is what both
completions begin with. A pair may have a ``margin``, by which the chosen one is better, ``tie``
true: neither is better, or ``share``: the probability that the chosen one is better.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from equipoise.hints import shortened
from equipoise.language import messages
from equipoise.language.task_files import plain, whole
from equipoise.types.packed import Example, Prompt, begun

Row = Mapping[str, object]


def examples(rows: Iterable[tuple[int, object]], where: str, what: str) -> list[Example]:
    """Return examples of numbered rows: ``completion`` is the chosen one, and ``columns`` holds
    ``rejected``, ``margin``, ``tie`` and ``share``, or ``label``. ValueError names the wrong row.
    """
    made = list[Example]()
    for number, row in rows:
        at = f"{where}, {what} {number}"
        if not isinstance(row, Mapping):
            raise ValueError(f"{at}: must be an object with a pair, got {type(row).__name__}")
        one = _example({whole(str(name), at): value for name, value in row.items()}, at)
        if made and ("label" in one.columns) != ("label" in made[0].columns):
            raise ValueError(
                f"{at}: must be a row like the first, of pairs or with labels, got the other kind; "
                "put the two kinds into two files"
            )
        made.append(one)
    if not made:
        raise ValueError(f"{where}: must have at least one {what} with a pair, got none")
    return made


def _example(row: Row, at: str) -> Example:
    pair = "chosen" in row and "rejected" in row
    if not pair and not ("completion" in row and "label" in row):
        raise ValueError(
            f"{at}: must have 'chosen' and 'rejected', or 'completion' and 'label', got "
            f"{shortened(', '.join(row)) if row else 'nothing'}"
        )
    names = ("chosen", "rejected") if pair else ("completion",)
    given = {name: plain(row[name], f"{at}: {name}") for name in names}
    prompt = plain(row.get("prompt"), f"{at}: prompt")
    if prompt is None and pair:
        prompt, given = _common(given["chosen"], given["rejected"], at)
    asked = messages.read_prompt(prompt, f"{at}: prompt")
    parts = {name: _parted(asked, value, f"{at}: {name}") for name, value in given.items()}
    prompts = [one for one, _ in parts.values()]
    if prompts[0] != prompts[-1]:
        raise ValueError(
            f"{at}: must be two completions of one prompt, got two prompts in 'chosen' and "
            "'rejected'; make a pair of each prompt"
        )
    texts = {name: text for name, (_, text) in parts.items()}
    if empty := [name for name, text in texts.items() if not text]:
        raise ValueError(f"{at}: {empty[0]}: must be a text, got an empty one; leave the row out")
    if pair and texts["chosen"] == texts["rejected"]:
        raise ValueError(
            f"{at}: must be two different completions, got the same as 'chosen' and 'rejected'; "
            "leave the row out"
        )
    template = {} if isinstance(prompts[0], str) else messages.template(row, at)
    return Example(
        prompt=prompts[0],
        columns=(_label(row, at) | {"rejected": texts["rejected"]})
        if pair
        else {"label": _flag(row["label"], f"{at}: label")},
        completion=texts[names[0]],
        template=template,
        at=at,
    )


def _common(chosen: object, rejected: object, at: str) -> tuple[object, dict[str, object]]:
    """The prompt that both completions begin with, and the rest of each.

    The prompt of two texts is their longest common beginning, without a space at its end.
    """
    if isinstance(chosen, list) and isinstance(rejected, list):
        if not (len(chosen) > 1 and len(rejected) > 1):
            raise ValueError(
                f"{at}: must have a prompt, or messages in 'chosen' that begin with one, got none"
            )
        return chosen[:-1], {"chosen": chosen, "rejected": rejected}
    if not (isinstance(chosen, str) and isinstance(rejected, str)):
        raise ValueError(
            f"{at}: must have texts or messages as both completions, got "
            f"{type(chosen).__name__} and {type(rejected).__name__}"
        )
    pairs = enumerate(zip(chosen, rejected, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(chosen), len(rejected)))
    prompt = chosen[:same].removesuffix(" ")
    if not prompt:
        raise ValueError(
            f"{at}: must have a prompt, or completions that begin with the same text, got none"
        )
    cut = len(prompt)
    return prompt, {"chosen": chosen[cut:], "rejected": rejected[cut:]}


def _parted(prompt: Prompt, value: object, at: str) -> tuple[Prompt, str]:
    """The prompt and the text of one completion: a text, or messages of which the last is it.

    Messages before the last are a prompt, which takes the place of a text with the same question.
    """
    if isinstance(value, str):
        return prompt, value
    if not isinstance(value, list) or not value:
        raise ValueError(f"{at}: must be a text or messages, got {shortened(repr(value))}")
    said = [messages.read_message(one, f"{at}, message {i + 1}") for i, one in enumerate(value)]
    *before, last = said
    if last["role"] != "assistant" or "tool_calls" in last:
        raise ValueError(
            f"{at}: must end with a message of the assistant without calls, got one of "
            f"{last['role']}"
        )
    if isinstance(prompt, str):
        if not before:
            raise ValueError(
                f"{at}: must be a text after a prompt that is a text, got a message; make the "
                "prompt a list of messages"
            )
        if before[-1].get("content") != prompt:
            raise ValueError(
                f"{at}: must begin with the row's prompt, got another; a pair has one prompt"
            )
        return before, str(last["content"])
    asked, beginning = begun(prompt)
    if before and before not in (list(prompt), list(asked)):
        raise ValueError(
            f"{at}: must begin with the prompt of the row or of 'chosen', got another; a pair has "
            "one prompt"
        )
    return prompt, str(last["content"]).removeprefix(beginning)


def _label(row: Row, at: str) -> dict[str, object]:
    margin, tie = row.get("margin"), row.get("tie")
    value = plain(0.0 if margin is None else margin, f"{at}: margin")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{at}: margin: must be a number, got {shortened(repr(margin))}")
    tied = tie is not None and _flag(tie, f"{at}: tie")
    if tied and value:
        raise ValueError(f"{at}: margin: must be left out of a tie, got {value:g}")
    given = row.get("share")
    share = plain(0.5 if tied else 1.0 if given is None else given, f"{at}: share")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0.5 <= share <= 1:
        raise ValueError(f"{at}: share: must be 0.5 to 1, got {shortened(repr(given))}")
    return {"margin": float(value), "tie": share == 0.5, "share": float(share)}


def _flag(value: object, at: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{at}: must be true or false, got {shortened(repr(value))}")
    return value


def unpaired(some: Iterable[Example]) -> list[Example]:
    """Return rows with labels: a pair becomes two, and a row that has a label stays.

    ValueError for a tie, which says of neither completion that it is wanted.
    """
    made = list[Example]()
    for one in some:
        if "label" in one.columns:
            made.append(one)
            continue
        if one.columns["tie"]:
            raise ValueError(f"{one.at}: must be no tie, since labels are learned, got one")
        for text, label in ((one.completion, True), (str(one.columns["rejected"]), False)):
            made.append(replace(one, completion=text, columns={"label": label}))
    return made
