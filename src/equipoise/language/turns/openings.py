"""The prompts with which a partner begins its conversations, one for each row of a task."""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from equipoise import foreign
from equipoise.language import messages
from equipoise.language.turns.partner import END, Partner, opening
from equipoise.language.turns.steps import Call, Failure, PartnersFailed, Steps
from equipoise.types.packed import Example, Prompt

AT_ONCE = 16  # partners that begin side by side
LOOK_S = 0.25  # between two looks at partners that are late


def examples(
    make: Callable[[], Partner],
    rows: Sequence[object],
    what: str,
    deadline_s: float,
    *,
    at_once: int = AT_ONCE,
) -> list[Example]:
    """Return an example for each row, with the prompt that a partner of its own begins with.

    ValueError, which begins with ``what`` and the row, if a partner has no prompt within
    ``deadline_s``.
    """
    found = list[Example]()
    checked = [_row(row, f"{what}, row {number}") for number, row in enumerate(rows, 1)]
    calls = [lambda settle, row=row: _opened(make(), row, settle) for row in checked]
    prompts = _all(calls, what, deadline_s, at_once)
    for number, (row, prompt) in enumerate(zip(checked, prompts, strict=True), 1):
        at = f"{what}, row {number}"
        template = messages.template(row, at)
        found.append(Example(prompt=prompt, columns=dict(row), template=template, at=at))
    return found


def _row(row: object, at: str) -> Mapping[str, object]:
    if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
        raise ValueError(f"{at}: must be a mapping with texts as keys, got {row!r:.80}")
    return row


def _opened(
    partner: Partner, row: Mapping[str, object], settle: Callable[[object], object]
) -> Prompt:
    try:
        return opening(partner, row, settle)
    finally:
        if foreign.calls(partner, END):
            settle(foreign.attribute(partner, END)())


def _all(calls: Sequence[Call], what: str, deadline_s: float, at_once: int) -> list[Prompt]:
    """Return the results of all calls, in their order; the first failed row ends it."""
    steps, results, sent = Steps(deadline_s, at_once), dict[int, object](), 0
    try:
        while len(results) < len(calls):
            while sent < len(calls) and steps.waiting < at_once:
                steps.submit(sent, calls[sent])
                sent += 1
            select.select(steps.fds(), [], [], LOOK_S)
            for number, value in sorted(steps.poll()):
                if isinstance(value, Failure):
                    raise ValueError(
                        f"{what}, row {number + 1}: must have a prompt, got {value.error}"
                    )
                results[number] = value
    except PartnersFailed as error:
        raise ValueError(f"{what}: must have partners that begin in time, got {error}") from error
    finally:
        steps.close()
    return [cast("Prompt", results[number]) for number in range(len(calls))]
