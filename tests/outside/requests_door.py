"""What a stranger may ask of the page: questions and moves of any kind; and what a config file may
hold.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import strategies as st

from equipoise.programs import config_file
from equipoise.programs.config_file import SUFFIXES, for_toml, read_config, write_config
from equipoise.programs.program import to_json
from equipoise.registry import Registry
from equipoise.watching import page as pages
from equipoise.watching.page import Page
from equipoise.watching.runs import Folder
from equipoise.watching.versions import Versions
from tests.outside.harness import Door, Fault, Planted, shares
from tests.outside.runs_door import ODD_VALUES, TOKENS, ask, base, change, json_of, text_of
from tests.registry.made import artifact

TOKEN = "a-token-of-24-letters-xx"
WORDS = st.one_of(
    st.sampled_from(
        [
            "a",
            "z",
            "unknown",
            "..",
            "%ff",
            "%00",
            "%ED%A0%80",
            "a" * 5000,
            "return",
            "learner/entropy",
            "+",
        ]
    ),
    st.text(st.characters(codec="ascii"), max_size=8),
)
RUNS = st.tuples(st.just("run"), shares((4, st.sampled_from(["a", "z"])), (1, WORDS)))
CURVES = (
    "return",
    "evaluation",
    "learner/entropy",
    "learning/worked",
    "updates_per_s",
    "learner/",
    "steps",
)
NUMBERS = st.tuples(st.just("y"), shares((4, st.sampled_from(CURVES)), (1, WORDS)))
AXES = st.tuples(
    st.just("x"), shares((3, st.sampled_from(["steps", "updates", "wall"])), (1, WORDS))
)
QUERIES = st.lists(
    shares((3, RUNS), (3, NUMBERS), (1, AXES), (1, st.tuples(st.just("z"), WORDS))), max_size=40
)
NAMED = st.text(st.characters(codec="ascii"), max_size=20).map("/static/{}".format)
FIXED = st.sampled_from(["/static/app.js", "/static/x", "/", "/x", "/api/x", "/api/registry"])
ASKED = st.fixed_dictionaries(
    {
        "path": shares(
            (7, st.sampled_from(["/api/run", "/api/curves", "/api/curves", "/api/settings"])),
            (2, FIXED),
            (1, NAMED),
        ),
        "query": QUERIES,
    }
)
# A body is a right one with changes. "@a" and "@b" are versions: a is the champion, b was it
# before.
ODD = st.one_of(
    ODD_VALUES,
    st.sampled_from(
        ["@a", "@b", "champion", "candidate", "shadow", "previous", "p\n", "../p", "\ud800"]
    ),
)
CHANGES = st.lists(st.tuples(st.lists(st.integers(0, 12), min_size=1, max_size=2), ODD), max_size=2)
MOVED: dict[str, dict[str, str]] = {
    "/api/alias": {
        "policy": "p",
        "alias": "champion",
        "version": "@b",
        "expect": "@a",
        "reason": "better",
    },
    "/api/rollback": {"policy": "p", "expect": "@a", "reason": "worse"},
    "/api/enter": {"token": TOKEN},
}
HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "host",
            "origin",
            "sec-fetch-site",
            "content-length",
            "content-type",
            "cookie",
            "authorization",
        ]
    ),
    st.sampled_from(
        [
            "",
            "x",
            "null",
            "http://127.0.0.1",
            "cross-site",
            "9" * 20,
            "-1",
            "\u0660",
            "a=b; c",
            "Bearer",
            "Bearer x",
            "é" * 300,
        ]
    ),
    max_size=1,
)
MOVES = st.fixed_dictionaries(
    {
        "path": st.sampled_from(sorted(MOVED)),
        "changes": shares((1, st.just([])), (2, CHANGES)),
        "headers": shares((3, st.just({})), (1, HEADERS)),
        "token": st.sampled_from([TOKEN, TOKEN, TOKEN, "wrong", "", "é"]),
        "closed": st.booleans(),
    }
)


@functools.cache
def registry() -> tuple[Any, Path, dict[str, str]]:
    """A registry whose champion was another one before, and its versions."""
    kept = tempfile.TemporaryDirectory(prefix="equipoise-page-door-")
    place = Path(kept.name)
    to = Registry(place / "registry", create=True)
    versions = {f"@{name}": to.add(artifact(place / name, name), "p") for name in "ba"}
    for version in versions.values():
        to.alias("p", "champion", version)
    return kept, place / "registry", versions


def ask_the_page(example: dict[str, Any]) -> None:
    if "query" in example:
        query = (
            "&".join(f"{key}={word}" for key, word in example["query"])
            .encode("ascii", "ignore")
            .decode()
        )
        answered(Page(Folder(base()), closed=False), example["path"], query)
        return
    body: Any = MOVED[example["path"]]
    for path, to in example["changes"]:
        body = change(body, path, to)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "WRONG_S", 0.0)
        patch.setattr(os, "fsync", lambda handle: None)
        place = Path(shutil.copytree(registry()[1], Path(folder) / "registry"))
        text = text_of(body)
        for name, version in registry()[2].items():
            text = text.replace(name, version)
        before = Registry(place).aliases("p")
        page = Page(Folder(base()), Versions(place), token=TOKEN, closed=example["closed"])
        status = answered(
            page,
            example["path"],
            "",
            text.encode(),
            {"authorization": f"Bearer {example['token']}"} | example["headers"],
        )
        right = example["token"] == TOKEN and "authorization" not in example["headers"]
        if not right and Registry(place).aliases("p") != before:
            raise Fault("a version is moved without the token", str(example))
        if right and not example["changes"] and not example["headers"] and status != 200:
            raise Fault("a right question is refused", str(status))
        if problems := Registry(place).verify():
            raise Fault("a move that damages the registry", str(problems))


def answered(
    page: Page,
    path: str,
    query: str,
    data: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> int:
    """The status of an answer; Fault where it is an error of the server, or no JSON."""
    try:
        status, body = asyncio.run(ask(page.app, path, query, data, headers))
        if status >= 500:
            raise Fault(f"status {status}", repr(body[:300]))
        if len(body) > 1 << 20:
            raise Fault("a large answer to a small question", f"{len(body):,} bytes")
        if path.startswith("/api/") and path != "/api/x":
            json_of(body, path)
        return status
    finally:
        page._hands.shutdown()


IN_TOML = {
    "@date": "2020-01-01",
    "@deep": "[" * 3000,
    "@inf": "inf",
    "@minus": "-inf",
    "@nan": "nan",
}
VALUES = shares(ODD_VALUES, ODD_VALUES, st.sampled_from(sorted(IN_TOML)))
CONFIGS = st.fixed_dictionaries(
    {
        "changes": st.lists(
            st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=5), VALUES), max_size=3
        ),
        # most are read at all
        "bytes": st.one_of(
            st.just(""), st.just(""), st.just(""), st.binary(max_size=12).map(bytes.hex)
        ),
        "at": st.integers(0, 4000),
        "suffix": st.sampled_from([".json", ".toml"]),
    }
)


def toml_of(value: Any) -> str:
    text = tomli_w.dumps(for_toml(value))
    for token, raw in (TOKENS | IN_TOML).items():
        text = text.replace(f'"{token}"', raw)
    return text


def read_a_config(example: dict[str, Any]) -> None:
    """A config is refused with its name, or is read again from what is written of it."""
    from equipoise import api

    value: Any = to_json(api.program("CartPole-v1", "ppo", recipe=False))
    for path, to in example["changes"]:
        value = change(value, path, to)
    data = (text_of(value) if example["suffix"] == ".json" else toml_of(value)).encode()
    data = data[: example["at"]] + bytes.fromhex(example["bytes"]) + data[example["at"] :]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"config{example['suffix']}"
        file.write_bytes(data)
        try:
            program = read_config(file)
        except ValueError as error:
            if isinstance(error, UnicodeError) or str(file) not in str(error):
                raise
            return
        for suffix in SUFFIXES:
            write_config(program, again := Path(folder) / f"again{suffix}")
            if read_config(again) != program:
                raise Fault("a config is read otherwise the second time", again.read_text()[:3000])


def any_file_is_asked_for(patch: pytest.MonkeyPatch) -> None:
    """A name that is unknown was an error of the server."""
    patch.setattr(pages, "hint", lambda name, known: known[name])


def toml_errors_escape(patch: pytest.MonkeyPatch) -> None:
    """Brackets without end in a config were a traceback."""
    patch.setattr(config_file, "parse_toml", lambda data, path: tomllib.loads(data.decode()))


DOORS = [
    Door(
        name="page",
        examples=shares((3, ASKED), (2, MOVES)),
        attempt=ask_the_page,
        hang_s=5.0,
        prepare=registry,
        quick=40,
        full=200,
    ),
    Door(
        name="config file", examples=CONFIGS, attempt=read_a_config, hang_s=5.0, quick=40, full=200
    ),
]
PLANTED = [
    Planted("an unknown name is an error of the server", "page", any_file_is_asked_for),
    Planted(
        "brackets end the reading of a config",
        "config file",
        toml_errors_escape,
        kinds=("RecursionError",),
    ),
]
