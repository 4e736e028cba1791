"""The options of ``equipoise serve``, which come from the fields of its settings."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from equipoise import cli
from equipoise.console.options import read_fields
from equipoise.serving.settings import Rules, Settings

DEFAULTS = {
    "policy": None,
    "port": "8000",
    "uds": None,
    "decisions": "NAME.decisions",
    "observations": "observations",
    "backend": "onnx",
    "base": None,
    "trust": None,
    "threads": "1",
    "version": None,
    "model-name": None,
    "context": None,
    "queue": "256",
    "device": "cpu",
    "batch": "64",
    "seed": "random",
    "debug": None,
    "host": "127.0.0.1",
    "token-file": None,
    "allow-host": None,
    "allow-origin": None,
    "session-timeout": "600",
    "max-sessions": "10000",
    "max-body": "8388608",
    "max-connections": "1024",
    "request-timeout": "10",
    "drain": "10",
    "trial-time": "20",
    "trial-memory": "1073741824",
    "deadline-ms": None,
    "low": None,
    "high": None,
    "margin": None,
    "fallback": "best",
    "safe-action": None,
}


def test_the_options_and_their_defaults_are_those_of_before() -> None:
    text = (
        CliRunner()
        .invoke(cli.app, ["serve", "--help"], env={"COLUMNS": "80"})
        .output.partition("Examples:")[0]
    )
    parts = re.split(r"\n  (?:-h, )?--([a-z-]+)", text.partition("Options:")[2])
    found = dict(
        zip(
            parts[1::2],
            (re.search(r"\(default:\s+([^\s)]+)\)", part) for part in parts[2::2]),
            strict=True,
        )
    )
    assert {
        name: default[1] if default else None for name, default in found.items() if name != "help"
    } == DEFAULTS


def test_texts_are_read_by_the_types_of_the_fields() -> None:
    given = {
        "policy": "none",
        "port": "none",
        "max_body": "1e6",
        "drain": "2.5",
        "allow_host": ["a", "b"],
        "seed": None,
    }
    assert read_fields(Settings, given) == {
        "policy": "none",
        "port": None,
        "most_body": 1_000_000,
        "drain_s": 2.5,
        "hosts": ("a", "b"),
    }
    assert read_fields(Rules, {"low": "[0, 1]", "safe_action": '{"a": 1}', "fallback": "safe"}) == {
        "low": [0, 1],
        "safe": {"a": 1},
        "fallback": "safe",
    }


@pytest.mark.parametrize(
    ("option", "text", "wanted"),
    [
        ("--port", "70000", "--port: expected 0 to 65535, got 70000"),
        ("--port", "http", "--port: expected a whole number or none, got 'http'"),
        ("--batch", "0", "--batch: expected 1 to 4096, got 0"),
        ("--drain", "0", "--drain: expected more than 0 and at most 1e+09, got 0"),
        ("--deadline-ms", "nan", "--deadline-ms: expected"),
        (
            "--backend",
            "onx",
            "--backend: expected one of 'onnx', 'torch', got 'onx' (did you mean 'onnx'?)",
        ),
        ("--fallback", "worst", "--fallback: expected one of 'best', 'safe', got 'worst'"),
        ("--low", "{", "--low, line 1: expected JSON"),
    ],
)
def test_a_value_that_cannot_be_is_one_line(option: str, text: str, wanted: str) -> None:
    found = CliRunner().invoke(cli.app, ["serve", "registry", "--policy", "p", option, text])
    assert (
        found.exit_code == 2 and wanted in found.output and found.output.strip().count("\n") == 0
    ), found.output
