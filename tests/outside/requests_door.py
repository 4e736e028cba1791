"""What a stranger may ask of the page: paths, queries and hosts of any kind; and what a config file may hold."""

from __future__ import annotations

import asyncio
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import strategies as st

from equipoise.programs import config_file
from equipoise.programs.config_file import SUFFIXES, _toml, read_config, write_config
from equipoise.programs.program import to_json
from equipoise.watching import page as pages
from equipoise.watching.page import Page
from equipoise.watching.runs import Folder
from tests.outside.harness import Door, Fault, Planted, weighted
from tests.outside.runs_door import ODD_VALUES, TOKENS, ask, base, change, json_of, text_of

PATHS = st.sampled_from(["/api/run", "/api/curves", "/api/settings", "/api/registry", "/static/app.js", "/static/x", "/", "/x"])
WORDS = st.one_of(
    st.sampled_from(["a", "z", "unknown", "..", "%ff", "%00", "%ED%A0%80", "a" * 5000, "return", "learner/entropy", "+"]),
    st.text(st.characters(codec="ascii"), max_size=8),
)
QUERIES = st.lists(st.tuples(st.sampled_from(["run", "y", "x", "z"]), WORDS), max_size=40)
NAMED = st.text(st.characters(codec="ascii"), max_size=20).map("/static/{}".format)
ASKED = st.fixed_dictionaries({"path": PATHS | NAMED, "query": QUERIES})


def ask_the_page(example: dict[str, Any]) -> None:
    page = Page(Folder(base()), closed=False)
    try:
        query = "&".join(f"{key}={word}" for key, word in example["query"])
        status, body = asyncio.run(ask(page.app, example["path"], query.encode("ascii", "ignore").decode()))
        if status >= 500:
            raise Fault(f"status {status}", repr(body[:300]))
        if len(body) > 1 << 20:
            raise Fault("a large answer to a small question", f"{len(body):,} bytes")
        if example["path"].startswith("/api/"):
            json_of(body, example["path"])
    finally:
        page._hands.shutdown()


IN_TOML = {"@date": "2020-01-01", "@deep": "[" * 3000, "@inf": "inf", "@minus": "-inf", "@nan": "nan"}
VALUES = weighted(ODD_VALUES, ODD_VALUES, st.sampled_from(sorted(IN_TOML)))
CONFIGS = st.fixed_dictionaries({
    "changes": st.lists(st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=5), VALUES), max_size=3),
    "bytes": st.one_of(st.just(""), st.just(""), st.just(""), st.binary(max_size=12).map(bytes.hex)),  # most are read at all
    "at": st.integers(0, 4000), "suffix": st.sampled_from([".json", ".toml"]),
})  # fmt: skip


def toml_of(value: Any) -> str:
    text = tomli_w.dumps(_toml(value))
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
    Door(name="page", examples=ASKED, attempt=ask_the_page, hang_s=5.0, quick=40, full=200),
    Door(name="config file", examples=CONFIGS, attempt=read_a_config, hang_s=5.0, quick=40, full=200),
]
PLANTED = [
    Planted("an unknown name is an error of the server", "page", any_file_is_asked_for),
    Planted("brackets end the reading of a config", "config file", toml_errors_escape, kinds=("RecursionError",)),
]
