"""Kill processes that answer: ``python -m tests.feedback.killing FOLDER``.

A process of its own, since it forks. A child answers as fast as it can and writes the row of each
answer to a pipe once the store has returned it; after a random time it is killed. Prints a JSON
line for each of 20 children: the acknowledged rows, and the rows in the store then.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import struct
import sys
import time
from pathlib import Path

from equipoise.feedback import Store
from tests.feedback.made import store_with

TIMES, QUERIES = 20, 4000


def answering(folder: Path, pipe: int) -> None:
    store = Store.open(folder)
    while (question := store.next_query("a")) is not None:
        row = store.answer(question.query.id, "a", "left", 0.5)
        os.write(pipe, struct.pack("<q", row))
        if row % 7 == 0:
            store.undo("a")


def main(folder: Path) -> None:
    store = store_with(folder, 2, "a", repeat_share=0.3)
    first, other = store.query(1).left, store.query(1).right
    with store._db.writing() as db:
        db.executemany(
            "INSERT INTO queries (kind, item_left, item_right, purpose, created) "
            "VALUES ('clip', ?, ?, 'random', 0)",
            [(first, other)] * QUERIES,
        )
        db.execute("INSERT OR IGNORE INTO open SELECT id FROM queries")
    store.close()  # no connection survives a fork
    draw = random.Random(0)
    for _ in range(TIMES):
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            os.close(reading)
            try:
                answering(folder, writing)
            finally:
                os._exit(1)
        os.close(writing)
        select.select([reading], [], [], 60)  # the first answer
        time.sleep(draw.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        data = b""
        while piece := os.read(reading, 1 << 16):
            data += piece
        os.close(reading)
        rows = [row for (row,) in struct.iter_unpack("<q", data)]
        with Store.open(folder) as after:
            kept = [one.row for one in after.answers()]
            undone = after.undone()
            with after._db.reading() as db:
                (whole,) = db.execute("PRAGMA integrity_check").fetchone()
            last = after.last_row()
        said = {"code": code, "rows": rows, "kept": kept, "undone": undone, "last": last}
        print(json.dumps(said | {"whole": whole}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
