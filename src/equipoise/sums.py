"""Sums of rewards, written as text: names with weights, such as ``env+0.5*rnd``.

sum     = product, then any number of "+ product", "- product" or ", product"
product = factors with "*" between them
factor  = a number, a name, module:name, or a trained reward model: run:DIR or registry:NAME@VERSION

A place with a space or one of ``,+*`` in it stands in quotes: run:"my runs/reward".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from difflib import get_close_matches

from equipoise.hints import shortened

ENV = "env"  # the name of the env's own rewards
LONGEST = 1_000  # characters
RUN, REGISTRY = "run:", "registry:"  # begin the names of trained reward models
MODELS = (RUN, REGISTRY)
MODEL = r"(?:run|registry):(?:\"[^\"\n]+\"|'[^'\n]+'|[^\s,+*]+)"
QUOTES = "\"'"
SMALLEST, LARGEST = 1e-9, 1e9  # absolute values of a weight
TOKEN = re.compile(
    r"((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.:])"  # a number
    rf"|{MODEL}"
    r"|[A-Za-z_][\w.]*(?::[A-Za-z_][\w.]*)?"  # a name
    r"|[-+*,])\s*"
)
NOT_FINITE = ("nan", "inf", "infinity")
EXAMPLE = "such as env+0.5*rnd"


@dataclass(frozen=True, slots=True)
class Product:
    """Factors that are multiplied, and the weight of the product in the sum."""

    weight: float
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return "*".join(self.names)


def parsed(text: str, where: str) -> tuple[Product, ...]:
    """Return the products of a sum; ValueError, which begins with ``where``, for no sum."""
    if len(text) > LONGEST:
        raise ValueError(
            f"{where}: must have at most {LONGEST:,} characters, got {len(text):,}; try fewer terms"
        )
    products, sign, factors = list[Product](), 1.0, list[str]()
    for word in (*_tokens(text, where), "+"):
        if word not in ("+", "-", ","):
            factors.append(_unquoted(word))
            continue
        if factors or products or word == ",":  # else a sign before the first product
            products.append(_product(sign, factors, text, where))
        sign, factors = -1.0 if word == "-" else 1.0, []
    if not products:
        raise ValueError(f"{where}: must be a sum of rewards, {EXAMPLE}, got {text!r}")
    every = [name for one in products for name in one.names]
    if twice := next((name for name in every if every.count(name) > 1), None):
        raise ValueError(
            f"{where}: must have each term once, got {twice!r} twice in "
            f"{shortened(text)!r}; try one weight, such as 2*{twice}"
        )
    return tuple(products)


def codes(text: object) -> list[str]:
    """Return the names ``module:name`` and of reward models in a text, also in one that is no
    sum.
    """
    parts = re.findall(rf"{MODEL}|[^-+*,\s]+", text) if isinstance(text, str) else []
    return [_unquoted(part) for part in parts if ":" in part]


def models(text: str) -> list[str]:
    """Return the names of the trained reward models in a sum, without quotes."""
    return [name for name in codes(text) if name.startswith(MODELS)]


def with_models(text: str, change: Callable[[str], str]) -> str:
    """Return a sum in which ``change`` gives each reward model its name."""
    # not in the midst of a word, such as rerun:Bonus
    return re.sub(rf"(?<![\w.:]){MODEL}", lambda found: _quoted(change(_unquoted(found[0]))), text)


def _unquoted(word: str) -> str:
    """Return the name of a reward model without quotes around its place; another word as it is."""
    kind, colon, place = word.partition(":")
    quoted = len(place) > 2 and place[0] == place[-1] and place[0] in QUOTES
    return f"{kind}:{place[1:-1]}" if quoted and kind + colon in MODELS else word


def _quoted(name: str) -> str:
    """Return the name of a reward model as a sum has it; ValueError if it has both quotes."""
    if re.fullmatch(MODEL, name) and _unquoted(name) == name:
        return name
    kind, _, place = name.partition(":")
    if (mark := next((one for one in QUOTES if one not in place), None)) is None:
        raise ValueError(f"reward {name!r}: must be a place without one of the quotes, got both")
    return f"{kind}:{mark}{place}{mark}"


def unknown(name: str, known: Collection[str], where: str) -> ValueError:
    """Return the error for a term that no table has."""
    # names are short, so that one letter is a large part
    near = get_close_matches(name, [ENV, *known], 1, 0.6)
    return ValueError(
        f"{where}: must be a sum of {', '.join([ENV, *sorted(known)])} or module:Class, got "
        f"{shortened(name)!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    )


def _tokens(text: str, where: str) -> list[str]:
    found, at = list[str](), len(text) - len(text.lstrip())
    while at < len(text):
        if (match := TOKEN.match(text, at)) is None:
            raise ValueError(
                f"{where}: must be a sum of rewards, {EXAMPLE}, got "
                f"{shortened(text[at:].strip())!r} in it"
            )
        found.append(match[1])
        at = match.end()
    return found


def _product(sign: float, factors: list[str], text: str, where: str) -> Product:
    """Read factors with "*" between them."""
    weight, names = sign, list[str]()
    if len(factors) % 2 == 0 or "*" in factors[::2] or set(factors[1::2]) - {"*"}:
        got = shortened(" ".join(factors)) if factors else "nothing"
        raise ValueError(
            f"{where}: must be a sum of rewards, {EXAMPLE}, got {got!r} as a term of "
            f"{shortened(text)!r}"
        )
    for factor in factors[::2]:
        if factor[0].isdigit() or factor[0] == "." or factor.lower() in NOT_FINITE:
            weight *= float(factor)
        else:
            names.append(factor)
    if not SMALLEST <= abs(weight) <= LARGEST:  # also for nan
        raise ValueError(
            f"{where}: must have weights from {SMALLEST:g} to {LARGEST:g}, got {weight:g} in "
            f"{shortened(text)!r}; " + ("leave the term out" if weight == 0 else "try 1")
        )
    if not names:
        raise ValueError(
            f"{where}: must name a reward in each term, got a number alone in "
            f"{shortened(text)!r}; try env+0.5*rnd"
        )
    return Product(weight, tuple(names))
