"""Who may ask a server: addresses, names in a Host header, tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.access import is_local, named_host, read_token, same

VARIABLE = "EQUIPOISE_TRIED_TOKEN"


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.3", False),
        ("127.evil.example", False),
        ("", False),
    ],
)
def test_only_this_machine_reaches_a_local_address(host: str, local: bool) -> None:
    assert is_local(host) is local


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost:80", "localhost"),
        ("[::1]:80", "::1"),
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("evil.example:80", "evil.example"),
        ("", ""),
    ],
)
def test_a_host_header_has_a_name(header: str, name: str) -> None:
    assert named_host(header) == name


def test_a_token_is_in_a_file_or_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert read_token(VARIABLE, None, "--token-file") is None
    monkeypatch.setenv(VARIABLE, "of-the-environment")
    assert read_token(VARIABLE, None, "--token-file") == "of-the-environment"
    (tmp_path / "token").write_text("  of-the-file-of-tokens\n")
    assert read_token(VARIABLE, tmp_path / "token", "--token-file") == "of-the-file-of-tokens"


@pytest.mark.parametrize(
    "said",
    ["", "short", "has spaces, so no token", "é" * 20, "x" * 5000, "a-token-of\nseveral-lines"],
)
def test_a_token_that_is_easily_guessed_is_refused(tmp_path: Path, said: str) -> None:
    (tmp_path / "token").write_text(said)
    with pytest.raises(
        ValueError, match="--token-file: expected a token of 16 to 4,096 letters"
    ) as refused:
        read_token(VARIABLE, tmp_path / "token", "--token-file")
    assert said.strip() not in str(refused.value) or not said


def test_secrets_are_compared_whole() -> None:
    assert (
        same("a token", b"a token") and not same("a token", "a tokem") and not same("", "a token")
    )
    # JSON can say half of a letter
    assert same("\ud800", "\ud800") and not same("\ud800", "a token")
