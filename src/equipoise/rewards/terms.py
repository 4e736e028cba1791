"""The terms of a sum of rewards, made by their names: the built-in ones of a table, and
``module:Class``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import torch

from equipoise import schema
from equipoise.facts import Fact, facts
from equipoise.hints import raised
from equipoise.naming import imported
from equipoise.nets.threads import one_thread
from equipoise.rewards.reward_model import RewardModelTerm
from equipoise.rewards.term import Refused, RewardTerm, check_state, check_term
from equipoise.seeds import derive_seed
from equipoise.sums import ENV, MODELS, parsed, unknown
from equipoise.types import EnvSpec, Learns, Rewards

BUILT_IN = {
    "counts": "equipoise.rewards.counts:Counts",
    "e3b": "equipoise.rewards.e3b:E3B",
    "episodic": "equipoise.rewards.episodic:Episodic",
    "icm": "equipoise.rewards.icm:ICM",
    "gail": "equipoise.rewards.gail:GAIL",
    "preferences": "equipoise.rewards.preferences.term:Preferences",
    "rnd": "equipoise.rewards.rnd:RND",
}

Terms = Mapping[str, RewardTerm]  # by name, in the order of the sum


def term_classes(text: str) -> dict[str, type[RewardTerm]]:
    """Return the classes of the terms in a sum, by the words of the sum but ``env``; ValueError for
    a name that is no term.
    """
    words = [word for product in parsed(text, "reward") for word in product.names if word != ENV]
    found = {word: _class_of(word) for word in words}
    names = [ENV, *(name_of(word, cls) for word, cls in found.items())]
    if wrong := [name for name in names if not name.isidentifier()]:
        raise ValueError(
            f"reward: expected a name of letters and digits, such as 'counts', got {wrong[0]!r}"
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            "reward: expected terms whose names differ, since a state goes by them, got "
            f"{twice[0]!r} twice"
        )
    return found


def names_of(text: str) -> dict[str, str]:
    """Return the names of the terms in a sum, by its words."""
    return {word: name_of(word, cls) for word, cls in term_classes(text).items()}


def name_of(word: str, cls: type[RewardTerm]) -> str:
    """Return the name of a term: in the keys of its settings, in reports and in a state."""
    if word in BUILT_IN:
        return word
    given: object = cls.name  # a user's attribute
    return given if isinstance(given, str) and given else cls.__name__.lower()


def settings_of(cls: type[RewardTerm]) -> Mapping[str, Fact]:
    """Return the settings of a term; {} of a class that is no dataclass itself."""
    return facts(cls) if "__dataclass_fields__" in vars(cls) else {}


def made(rewards: Rewards) -> dict[str, RewardTerm]:
    """Make the terms of a sum with their settings, in its order."""
    found: dict[str, RewardTerm] = {}
    for word, cls in term_classes(rewards.sum).items():
        name = name_of(word, cls)
        try:
            found[name] = term = cls(**rewards.terms.get(name, {}))
        except Exception as error:  # the class of a user may raise anything
            raise ValueError(
                f"reward: expected {word}() to make a term, got {raised(error)}"
            ) from error
        if isinstance(term, RewardModelTerm):
            term.model_name = word
    return found


def notes(rewards: Rewards) -> list[str]:
    """Return what the terms of a sum have to print when a run begins."""
    found = list[str]()
    for name, term in made(rewards).items():
        try:
            found += term.notes()
        except Exception as error:
            raise ValueError(f"reward: {name}: {raised(error)}") from error
    return found


def following(rewards: Rewards, algorithm: Learns) -> dict[str, RewardTerm]:
    """Make terms for an algorithm; ValueError if one cannot work with it."""
    terms = made(rewards)
    for name, term in terms.items():
        try:
            term.follow(algorithm)
        except Refused:
            raise
        except Exception as error:
            raise ValueError(f"reward: {name}: {raised(error)}") from error
    return terms


def built(rewards: Rewards, algorithm: Learns, spec: EnvSpec, seed: int) -> dict[str, RewardTerm]:
    """Make terms for a policy, with the same networks in each learner; ValueError if one could not
    learn, be saved and be resumed.
    """
    terms = following(rewards, algorithm)
    for name, term in terms.items():
        own = derive_seed(seed, name)
        try:
            with one_thread(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(own)
                term.build(spec, own)
            check_term(term, type(term).__name__)
            check_state(state := term.state())
            schema.check(state, term.schema(), "state")
        except Refused:
            raise
        except Exception as error:
            raise ValueError(f"reward: {name}: {raised(error)}") from error
    return terms


def collecting(term: RewardTerm) -> bool:
    """Return whether a term sees each new row."""
    return type(term).collect is not RewardTerm.collect


def _class_of(word: str) -> type[RewardTerm]:
    if word.startswith(MODELS):
        return RewardModelTerm
    if word not in BUILT_IN and ":" not in word:
        raise unknown(word, BUILT_IN, "reward")
    cls = imported(BUILT_IN.get(word, word), "reward")
    if not (inspect.isclass(cls) and issubclass(cls, RewardTerm)):
        raise ValueError(
            f"reward: expected {word} to be a subclass of equipoise.rewards.term.RewardTerm, got "
            f"{cls.__name__ if inspect.isclass(cls) else type(cls).__name__}"
        )
    if lost := _without_decorator(cls):
        raise ValueError(
            f"reward: expected @dataclass(kw_only=True, eq=False) above the class {word}, got "
            f"none, so {', '.join(lost)} would have no effect"
        )
    return cls


def _without_decorator(cls: type[RewardTerm]) -> list[str]:
    """Annotated names with a default that are no settings, since their class lacks the
    decorator.
    """
    return [
        name
        for base in cls.__mro__
        if issubclass(base, RewardTerm) and "__dataclass_fields__" not in vars(base)
        for name, kind in inspect.get_annotations(base).items()
        if "ClassVar" not in str(kind) and name in vars(base)
    ]
