"""Bounds on what a caller chooses, checked before any work is done with it: how many values a body
has, and how long each is.

The event loop decodes bodies itself, so that a small request costs no thread. These bounds keep one
body from holding it: a body that passes them is decoded, read and answered within a few tens of
milliseconds.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

from equipoise.hints import shortened

SMALL = 4096  # bytes of a body that can do no harm, whatever is in it
JSON = 1 << 22  # bytes of a JSON body, and of the texts of a msgpack one
COMMAS = 1 << 17  # of a JSON body
ESCAPES = 1 << 18  # backslashes of one
MSGPACK_VALUES = 1 << 16  # values of a msgpack body; an array map has six, whatever its size
# lists and maps of a body, and colons of one in JSON: those cost several times as much as numbers
INNER = 1 << 15
LONG_NUMBERS, LONG = 1 << 14, 20  # numbers of a JSON body with more digits than this
DIGITS = 100  # of a number: long ones take time that grows with the square of their length
LONGEST = 1200  # letters of a sentence
KEYS, KEY = 4096, 256  # keys of an observation, and letters of one

AS_ARRAYS = (
    'send large arrays as msgpack, in maps of "dtype", "shape" and "data", or as binary tensors'
)

_DIGITS_AS_ZEROS = bytes(b"0"[0] if chr(i).isdigit() and i < 128 else i for i in range(256))
SCALARS = frozenset((int, float, bool))
_WIDTHS = {
    0xC0: 0,
    0xC2: 0,
    0xC3: 0,
    0xCA: 4,
    0xCB: 8,
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
    0xD4: 2,
    0xD5: 3,
    0xD6: 5,
    0xD7: 9,
    0xD8: 17,
}
_LENGTHS = {
    0xC4: 1,
    0xC5: 2,
    0xC6: 4,
    0xC7: 1,
    0xC8: 2,
    0xC9: 4,
    0xD9: 1,
    0xDA: 2,
    0xDB: 4,
    0xDC: 2,
    0xDD: 4,
    0xDE: 2,
    0xDF: 4,
}
_TEXTS = frozenset((*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB))


class TooMuch(ValueError):
    """The error of a body with more than the bounds allow."""


def shown(value: object, most: int = 80) -> str:
    """A value for a sentence, shortened."""
    return shortened(
        repr(value[: most + 1] if isinstance(value, str | bytes | list) else value), most
    )


def in_utf8(text: str) -> str:
    """Text whose halves of characters, from a file or a path of others, are escaped: no answer can
    hold them.
    """
    return text.encode(errors="backslashreplace").decode()


def sentence(text: str) -> str:
    """A sentence of a bounded length: the beginning of a longer one,
    and its end with the advice.
    """
    text = in_utf8(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 300]} ... {text[-290:]}"


def check_json(body: bytes) -> None:
    """TooMuch for a JSON body with too many values, or a number of too many digits."""
    if len(body) > JSON:
        raise TooMuch(
            f"body: expected JSON of at most {JSON:,} bytes, got {len(body):,}; {AS_ARRAYS}"
        )
    commas, inner, colons = body.count(b","), body.count(b"[") + body.count(b"{"), body.count(b":")
    if commas > COMMAS or inner > INNER or colons > INNER:
        raise TooMuch(
            f"body: expected JSON of at most {COMMAS:,} commas, {INNER:,} opening brackets and "
            f"{INNER:,} colons, got "
            f"{commas:,}, {inner:,} and {colons:,}; {AS_ARRAYS}"
        )
    if (escapes := body.count(b"\\")) > ESCAPES:
        raise TooMuch(
            f"body: expected at most {ESCAPES:,} backslashes, got {escapes:,}; send letters as "
            "UTF-8, not as \\u"
        )
    if len(body) > 16 * SMALL:
        zeros = body.translate(_DIGITS_AS_ZEROS)
        if b"0" * (DIGITS + 1) in zeros or zeros.count(b"0" * (LONG + 1)) > LONG_NUMBERS:
            raise TooMuch(
                f"body: expected numbers of at most {DIGITS} digits, and {LONG_NUMBERS:,} of more "
                f"than {LONG}, got others"
            )


def check_msgpack(body: bytes) -> None:
    """TooMuch for a msgpack body with too many values, or with keys that are no texts (such keys
    may all have one hash).
    """
    at, size, seen, inners, texts = 0, len(body), 1, 0, 0
    # values that the innermost list or map still has
    left, keyed, above = 1, False, list[tuple[int, bool]]()
    while at < size:
        while not left:
            if not above:
                return
            left, keyed = above.pop()
        head, inner, at = body[at], -1, at + 1
        if keyed and not left & 1 and head not in _TEXTS:
            raise TooMuch("body: expected texts as the keys of a map, got others")
        left -= 1
        if head < 0x80 or head >= 0xE0:
            continue
        if head < 0xA0:
            inner = head & 15
        elif head < 0xC0:
            at += head & 31
            texts += head & 31
        elif head in _WIDTHS:
            at += _WIDTHS[head]
        elif (width := _LENGTHS.get(head, 0)) > 0:
            length, at = int.from_bytes(body[at : at + width], "big"), at + width
            if head >= 0xDC:
                inner = length
            else:
                at += length + (0xC7 <= head <= 0xC9)
                texts += length if head in _TEXTS else 0
        if texts > JSON:
            raise TooMuch(
                f"body: expected msgpack with at most {JSON:,} bytes of texts, got more; send "
                "large arrays as bytes"
            )
        if inner >= 0:
            mapped = head >= 0xDE or head < 0x90
            above.append((left, keyed))
            left, keyed = inner * (1 + mapped), mapped
            seen, inners = seen + left, inners + 1
            if seen > MSGPACK_VALUES or inners > INNER:
                raise TooMuch(
                    f"body: expected msgpack of at most {MSGPACK_VALUES:,} values, {INNER:,} lists "
                    "and maps among them, "
                    'got more; send large arrays in maps of "dtype", "shape" and "data"'
                )


def numbers(value: list[Any]) -> object:
    """Return a list of numbers as it is, and of a list with texts the first text alone.

    NumPy would make an array in which each element is as long as the longest text.
    """
    level = value
    for _ in range(64):
        kinds = set(map(type, level))
        if kinds <= SCALARS:
            break
        if kinds != {list}:
            return next((one[:KEY] for one in level if isinstance(one, str | bytes)), value)
        level = list(chain.from_iterable(level))
    return value


def unsayable(value: object) -> str | None:
    """The first part of a value that JSON does not have (nan, an infinity, bytes), shortened; None
    if it has all.
    """
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, float):
            if not math.isfinite(one):
                return shown(one)
        elif isinstance(one, dict):
            if odd := next((key for key in one if not isinstance(key, str)), None):
                return f"the key {shown(odd)}"
            stack += one.values()
        elif isinstance(one, list):
            if len(one) < 16 or not SCALARS.issuperset(map(type, one)) or not _sums(one):
                stack += one
        elif one is not None and not isinstance(one, int | str):
            return shown(one)
    return None


def _sums(numbers: list[Any]) -> bool:
    """Is their sum finite? Then all are; if not, some may be."""
    try:
        return math.isfinite(sum(numbers))
    except OverflowError:
        return False
