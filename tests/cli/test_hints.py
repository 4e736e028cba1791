"""Hints: bounds on the names that are compared, and on the message of a user's error."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from equipoise.hints import (
    LONGEST,
    LONGEST_NAME,
    hint,
    nearest,
    raised,
    said,
    sentence,
    shortened,
)


def test_a_long_name_is_compared_with_none() -> None:
    assert nearest("gama", ["gamma", "x" * 10**6]) == "gamma"
    assert nearest("a" * (LONGEST_NAME + 1), ["a" * LONGEST_NAME]) is None
    assert hint("a" * (LONGEST_NAME + 1), ["gamma"]) == "; valid: gamma."


def test_the_message_of_a_users_error_is_whole_up_to_its_own_bound() -> None:
    assert said(ValueError("a" * 2_000)) == "a" * 2_000 and LONGEST > LONGEST_NAME
    assert (
        said(ValueError("a" * (LONGEST + 1))) == f"{'a' * LONGEST}... ({LONGEST + 1:,} characters)"
    )


def test_texts_are_shortened_and_end() -> None:
    assert shortened("a" * 80) == "a" * 80 and shortened("a" * 81) == "a" * 77 + "..."
    assert [sentence(one) for one in ("it is", "it is.", "is it?")] == [
        "it is.",
        "it is.",
        "is it?",
    ]


def test_the_line_of_a_mistake_is_the_users_and_not_the_library_s() -> None:
    @dataclass(frozen=True)
    class Base:
        one: int = 1

    with pytest.raises(TypeError) as refused:

        @dataclass
        class Derived(Base):  # type: ignore[misc]  # the mistake
            two: int = 2

    assert "non-frozen" in raised(refused.value)
    assert "dataclasses.py" not in raised(refused.value)
    assert __file__ in raised(refused.value)
