"""Eight processes at one store: ``python -m tests.feedback.racing FOLDER`` prints what came of it
as JSON.

A process of its own, since it forks. Each process asks for the one open query at the same moment;
then all answer many queries, each of which needs two answers, while the parent adds more.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from equipoise.feedback import Store
from tests.feedback.made import clips, quick, store_with

PEOPLE = "abcdefgh"


def at_once(act: Callable[[str], int], meanwhile: Callable[[], None]) -> list[int]:
    """The exit codes of ``act`` for each person, in a child; all begin at the same moment."""
    gate, open_gate = os.pipe()
    children = []
    for name in PEOPLE:
        if (child := os.fork()) == 0:
            os.close(open_gate)
            os.read(gate, 1)  # returns when the parent closes its end
            code = 99
            try:
                code = act(name)
            finally:
                os._exit(code)
        children.append(child)
    os.close(gate)
    os.close(open_gate)
    meanwhile()
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def opened(folder: Path) -> Store:
    store = Store.open(folder)
    quick(store)
    return store


def main(folder: Path) -> None:
    store_with(folder / "one", 1, PEOPLE).close()

    def hold(name: str) -> int:
        return 0 if opened(folder / "one").next_query(name) is None else 1

    held = at_once(hold, lambda: None)
    store_with(folder / "many", 20, PEOPLE, answers_per_query=2).close()

    def work(name: str) -> int:
        store = opened(folder / "many")
        while (question := store.next_query(name)) is not None:
            store.answer(question.query.id, name, "left", 1)
        return 0

    def add() -> None:
        with opened(folder / "many") as store:
            first, *others = clips(store, 41)
            for other in others[20:]:
                store.add_query("clip", first, other)

    codes = at_once(work, add)
    codes += at_once(work, lambda: None)  # what was added after a child found nothing open
    with Store.open(folder / "many") as store:
        answers = [(one.query, one.annotator) for one in store.answers()]
        left = store.counts().open
    print(json.dumps({"held": held, "codes": codes, "answers": answers, "open": left}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
