"""Text as tokens come: whole characters, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from equipoise.serving.chat.text import Text

SAID = "naïve ☂ 👩‍🔬 – end\N{REPLACEMENT CHARACTER}. ¡olé! " * 9


def lossy(tokens: Sequence[int]) -> str:
    """A tokenizer whose tokens are bytes; a part of a character is one sign."""
    return bytes(tokens).decode(errors="replace")


def each(tokens: Sequence[int]) -> str:
    """The same, with a sign for each byte of a part of a character."""
    text, part = "", b""
    for one in tokens:
        part += bytes([one])
        try:
            text, part = text + part.decode(), b""
        except UnicodeDecodeError:
            if len(part) == 4 or not _begins(part):
                text, part = text + "\N{REPLACEMENT CHARACTER}" * len(part), b""
    return text + "\N{REPLACEMENT CHARACTER}" * len(part)


def _begins(part: bytes) -> bool:
    return part[0] >= 0xC2 and all(0x80 <= one < 0xC0 for one in part[1:])


def parts(tokens: Sequence[int], seed: int) -> list[Sequence[int]]:
    random, found = Random(seed), list[Sequence[int]]()
    while tokens:
        size = random.choice((1, 1, 2, 3, 7))
        found.append(tokens[:size])
        tokens = tokens[size:]
    return found


@pytest.mark.parametrize("decode", [lossy, each])
@pytest.mark.parametrize("seed", range(5))
def test_no_part_splits_a_character_and_all_parts_are_the_text(decode: object, seed: int) -> None:
    assert callable(decode)
    text, said = Text(decode), ""
    tokens = list(SAID.encode())
    for some in parts(tokens, seed):
        new = text.add(some)
        assert SAID.startswith(said + new)
        said += new
    assert said + text.add([], last=True) == SAID


@pytest.mark.parametrize("decode", [lossy, each])
def test_a_text_of_torn_characters_is_not_held_back_for_ever(decode: object) -> None:
    assert callable(decode)
    text, tokens = Text(decode), [0xE2, 0x82] * 40
    said = "".join(text.add([one]) for one in tokens)
    assert len(said) > 30
    assert said + text.add([], last=True) == decode(tokens)


@pytest.mark.parametrize("seed", range(8))
def test_a_stop_string_over_parts_is_in_none_of_them(seed: int) -> None:
    whole = "one two thrthree four ENDING END five"
    for stops, wanted in (
        (("three",), "one two thr"),
        (("ENDER", "END"), "one two thrthree four "),
        (("fiver", "nothing"), whole),
        (("four E", "e t"), "on"),
        (("five",), whole.removesuffix("five")),
    ):
        text, said = Text(lossy, stops), ""
        for some in parts(list(whole.encode()), seed):
            said += text.add(some)
            assert wanted.startswith(said)
            if text.stopped:
                break
        else:
            said += text.add([], last=True)
        assert said == wanted
        assert text.stopped == (wanted != whole)


def test_letters_that_may_begin_a_stop_string_come_when_they_do_not() -> None:
    text = Text(lossy, ("\n\nUser:",))
    assert [text.add([one]) for one in b"a\n\nUs b"] == ["a", "", "", "", "", "\n\nUs ", "b"]
