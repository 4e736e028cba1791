"""Tasks of reasoning-gym: its questions, made from a seed;
``equipoise.language.scoring.reasoning:scored`` has their reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise import phases
from equipoise.hints import hint, install
from equipoise.language.text_task import TextTask, letters
from equipoise.seeds import derive_seed
from equipoise.types.packed import Example

SCORED = "equipoise.language.scoring.reasoning:scored"
KINDS: dict[type, tuple[type | tuple[type, ...], str]] = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    str: (str, "a text"),
}  # values of settings, by the type of their default
SIZE, HELD_OUT = 5000, 200  # questions to learn from, and held out


def read(name: str, given: Mapping[str, Any], seed: int) -> TextTask:
    """The task of a data set, with held-out questions; ``given``: settings and the two counts.

    A model from random weights gets the letters of questions and answers as tokens.
    """
    target = f"reasoning_gym:{name}"
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError as error:
        if error.name != "reasoning_gym":
            raise
        raise ImportError(f"task {target!r} needs reasoning-gym: {install('reasoning')}") from error
    if name not in DATASETS:
        raise ValueError(f"unknown task {target!r}{hint(name, DATASETS)}")
    settings = {"seed": derive_seed(seed, "reasoning_gym") & 0x3FFFFFFF, **given}
    held_out, learned = settings.pop("held_out", HELD_OUT), settings.pop("size", SIZE)
    for what, count in (("size", learned), ("held_out", held_out)):
        if type(count) is not int or count < 1:
            raise ValueError(
                f"task {target!r}: {what}: expected at least 1 question, got {count!r}"
            )
    known = {
        name: field.default
        for name, field in DATASETS[name][1].__dataclass_fields__.items()
        if name != "size"
    }
    for key, value in settings.items():
        if key not in known:
            raise ValueError(
                f"task {target!r}: unknown argument "
                f"{key!r}{hint(key, {*known, 'size', 'held_out'})}"
            )
        kind = int if key == "seed" else type(known[key])
        fits, what = KINDS.get(kind, (object, ""))
        if not isinstance(value, fits) or (kind in (int, float) and isinstance(value, bool)):
            raise ValueError(f"task {target!r}: {key}: expected {what}, got {value!r}")
    phases.say(f"making {learned + held_out:,} questions of {target}")
    try:
        made = reasoning_gym.create_dataset(name, size=learned + held_out, **settings)
    except (AssertionError, TypeError, ValueError) as error:  # how its settings are checked
        raise ValueError(
            f"task {target!r}: expected other settings than {settings}, got {error}"
        ) from error
    about = {"dataset": name, "settings": {**settings, "size": learned + held_out}}
    examples = [
        Example(
            prompt=made[i]["question"],
            columns={**about, "index": i, "answer": str(made[i]["answer"])},
            completion=str(made[i]["answer"] or ""),
        )
        for i in range(learned + held_out)
    ]
    kept = {one.prompt for one in examples[learned:]}
    train = [one for one in examples[:learned] if one.prompt not in kept]
    if not train:
        raise ValueError(
            f"task {target!r}: expected more questions than the {len(kept)} that are held out, got "
            "no other"
        )
    return TextTask(
        name=target,
        train=train,
        held_out=examples[learned:],
        reward=SCORED,
        tokenizer=letters(examples),
    )
