"""Run directories with odd files: pipes, devices, sparse gigabytes, values that no run writes,
names that are no text.

One odd run lies between two good ones. The rows of these stay, the odd one is a row or a sentence,
and every answer of the page is JSON that a browser reads.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import socket
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import strategies as st

from equipoise import api
from equipoise.console.curves import curves, drawn
from equipoise.console.tables import runs_table
from equipoise.files import json_bytes
from equipoise.record import listing
from equipoise.report.page import page as report_page
from equipoise.report.runs import read
from equipoise.watching.page import Page
from equipoise.watching.runs import Folder
from tests.outside.harness import Door, Fault, Planted
from tests.report import made
from tests.watching.test_runs import told

FILES = ("run.json", "summary.json", "metrics.jsonl", "live.json", "governor.jsonl")
KINDS = ("pipe", "socket", "folder", "device", "loop", "sparse", "closed", "cut", "bytes")
TOKENS = {
    "@inf": "1e999",
    "@minus": "-1e999",
    "@nan": "NaN",
    "@big": "1" + "0" * 400,
    "@half": '"\\ud800"',
    "@digits": "9" * 5000,
}
ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(sorted(TOKENS)),
    st.floats(-1e9, 1e9),
    st.text(max_size=5),
    st.sampled_from([1e308, -1e308, 1 << 70, "", "x" * 9999, [], {}, [[]], "\x1b[2J\na"]),
    st.lists(st.integers(0, 3), max_size=3),
)
NAMES = st.sampled_from(
    [
        b"m",
        b"m\xff\xfe",
        b"m'\"<b>",
        b"m\n\x1b[31m",
        "m\u2028é日本".encode(),
        b"m%E0%A4%A",
        b"m#?&=",
        b"m" * 200,
    ]
)
EXAMPLES = st.fixed_dictionaries(
    {
        "file": st.sampled_from(FILES),
        "kind": st.sampled_from(KINDS) | st.just("change"),
        "changes": st.lists(
            st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=4), ODD_VALUES),
            min_size=1,
            max_size=3,
        ),
        "name": NAMES.map(bytes.hex),
        "ended": st.booleans(),
    }
)


def change(value: Any, path: list[int], to: Any) -> Any:
    """A tree with one value replaced, or one key taken out; the numbers of ``path`` choose the way
    down.
    """
    if not path or not isinstance(value, dict | list) or not value:
        return to
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key, rest = keys[path[0] % len(keys)], path[1:]
    new: Any = dict(value) if isinstance(value, dict) else list(value)
    if not rest and path[0] % 7 == 6:
        del new[key]
    else:
        new[key] = change(value[key], rest, to)
    return new


def text_of(value: Any) -> str:
    text = json.dumps(value)
    for token, raw in TOKENS.items():
        text = text.replace(f'"{token}"', raw)
    return text


def spoil(run: Path, example: dict[str, Any]) -> None:
    """Put something else in the place of one file of a run, or change values in it."""
    file, kind = run / example["file"], example["kind"]
    before = file.read_bytes() if file.is_file() else b"{}\n"
    file.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one, _inside(run):
            one.bind(file.name)
    elif kind == "folder":
        file.mkdir()
    elif kind in ("device", "loop"):
        file.symlink_to("/dev/zero" if kind == "device" else file.name)
    elif kind == "sparse":
        with file.open("wb") as opened:
            opened.truncate(1 << 30)
    elif kind == "closed":
        file.write_bytes(before)
        file.chmod(0)
    elif kind == "cut":
        file.write_bytes(before[: len(before) * 2 // 3])
    elif kind == "bytes":
        file.write_bytes(
            before[: len(before) // 2] + bytes(range(256)) + before[len(before) // 2 :]
        )
    else:
        lines = (
            [json.loads(line) for line in before.splitlines()]
            if file.suffix == ".jsonl"
            else [json.loads(before)]
        )
        for path, to in example["changes"]:
            for i in range(len(lines)):
                lines[i] = change(lines[i], path, to)
        file.write_text("".join(text_of(line) + "\n" for line in lines))


class _inside:
    """A socket's path may have some 100 bytes: it is bound from within its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> None:
        self._before = os.getcwd()
        os.chdir(self._folder)

    def __exit__(self, *_: object) -> None:
        os.chdir(self._before)


async def ask(
    app: Any,
    path: str,
    query: str = "",
    data: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    """One question to an application, without a socket -> (status, body). ``data``: of a POST."""
    said: list[dict[str, Any]] = []
    usual = {"host": "127.0.0.1"} | (
        {}
        if data is None
        else {"content-length": str(len(data)), "content-type": "application/json"}
    )
    given = [(name.encode(), value.encode()) for name, value in (usual | (headers or {})).items()]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET" if data is None else "POST",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": given,
        "client": ("127.0.0.1", 1),
        "server": ("h", 80),
        "scheme": "http",
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data or b"", "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    await app(scope, receive, send)
    return said[0]["status"], b"".join(one.get("body", b"") for one in said)


def json_of(body: bytes, where: str) -> Any:
    """The JSON of an answer, with nothing in it that a browser's scripts stumble over."""

    def none(name: str) -> None:
        raise Fault("a number that JSON has not", f"{where}: {name}")

    found = json.loads(body, parse_constant=none)
    # half of a letter is an error here, as in encodeURIComponent
    json.dumps(found, ensure_ascii=False).encode()
    return found


def on_the_page(place: Path) -> dict[str, Any]:
    """What the page's questions answer: by the name of each run its row. ``Fault`` where one is no
    answer.
    """
    page = Page(Folder(place), closed=False)
    try:
        page.folder.poll()
        rows = {row["id"]: row for row in json_of(encoded(page.folder.news(-1)), "news")["rows"]}
        if len(rows) != len(page.folder.runs):
            raise Fault("two runs of one name", str(sorted(rows)))

        async def asked() -> None:
            for name in rows:
                run = f"run={quote(name, safe='')}"
                for path, query in (
                    ("run", run),
                    ("curves", f"{run}&y=return&y=evaluation&y=learning/worked"),
                    ("settings", run),
                ):
                    status, body = await ask(page.app, f"/api/{path}", query)
                    if status != 200:
                        raise Fault(
                            f"/api/{path} of a run that is listed: {status}", repr(body[:300])
                        )
                    json_of(body, path)
            status, body = await ask(page.app, "/api/run", "run=unknown")
            if status != 404 or "error" not in json_of(body, "unknown"):
                raise Fault(f"/api/run of an unknown run: {status}", repr(body[:300]))

        asyncio.run(asked())
        return rows
    finally:
        page._hands.shutdown()


def encoded(data: Any) -> bytes:
    from equipoise.pages import responses

    return responses.encoded(data)


def refused(what: Callable[[], Any]) -> Any:
    """The result, or the one sentence that says why there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return what()
    except (ValueError, OSError) as error:
        if not isinstance(error, UnicodeError) and "\n" not in str(error).replace("\\n", "").strip(
            "\n"
        ).replace("m\n", ""):
            return error
        raise


@functools.cache
def base() -> Path:
    place = Path(tempfile.mkdtemp(prefix="equipoise-door-"))
    for name in ("a", "z"):
        made.run(place / name, reports=3)
    import atexit

    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


FIXED = ("env", "algorithm", "status", "steps", "return_mean", "evaluation", "verdict", "wall_s")


def attempt(example: dict[str, Any]) -> None:
    place = base()
    odd = Path(os.fsdecode(os.fsencode(place) + b"/" + bytes.fromhex(example["name"])))
    try:
        made.run(odd, reports=3, summary=example["ended"])
        (odd / "live.json").write_text(json.dumps(told()))
        spoil(odd, example)
        damaged: list[str] = []
        rows = listing.rows(place, damaged=damaged)
        good = {
            row.path.name: [getattr(row, key) for key in FIXED] for row in rows if row.path != odd
        }
        if set(good) != {"a", "z"} or good["a"][:4] != [
            "CartPole-v1",
            good["a"][1],
            "completed",
            good["a"][3],
        ]:
            raise Fault("the row of another run changed", str(good))
        there = (odd / "run.json").is_file()
        # both, where another file than run.json is damaged
        if bool(len(rows) > 2 or damaged) != there:
            raise Fault("a run is neither a row nor a sentence", str(damaged))
        for key in ("changed", "evaluation", "-return_mean", "seed", "verdict", "schedule.steps"):
            listing.chosen(rows, ["steps>0"] if key == "seed" else [], key)
        json_of(
            json_bytes([row.plain() | {"name": ""} for row in rows]).replace(b"\\ud800", b""),
            "runs --json",
        )
        runs_table(rows, width=120)
        shown = on_the_page(place)
        if {"a", "z"} - set(shown) or shown["a"]["status"] != "completed":
            raise Fault("the page lost another run", str(sorted(shown)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a summary that is damaged
            read_runs, _ = read([place])
        if mine := [one for one in read_runs if one.row.path == odd]:
            report_page(mine)
        curves([str(place)])
        refused(lambda: drawn(curves([str(odd)], y="evaluation"), y="evaluation"))
        refused(lambda: read([odd]))
        refused(lambda: api.load(odd))
    finally:
        if odd.parent == place:
            shutil.rmtree(odd, ignore_errors=True)


def opens_whatever_is_there(patch: pytest.MonkeyPatch) -> None:
    """A pipe in the place of metrics.jsonl was waited for."""
    for module in ("watching.curves", "record.report", "files"):
        patch.setattr(f"equipoise.{module}.open_plain", lambda path: path.open("rb"))


def no_plain_answers(patch: pytest.MonkeyPatch) -> None:
    """Half of a letter, or a name that is no text, was an error 500."""
    patch.setattr(
        "equipoise.pages.responses.encoded",
        lambda data: json.dumps(data, ensure_ascii=False).encode(),
    )


DOORS = [
    Door(
        name="run directory",
        examples=EXAMPLES,
        attempt=attempt,
        hang_s=8.0,
        quick=10,
        full=200,
        prepare=base,
    )
]
PLANTED = [
    Planted(
        "a pipe is waited for", "run directory", opens_whatever_is_there, kinds=("hang", "Error")
    ),
    Planted("half of a letter is an error of the page", "run directory", no_plain_answers),
]
