"""Tasks: prompts to learn from and prompts that are held out, by name.

Three are built in, small enough to be learned from scratch in minutes. A seeded three quarters of
their inputs are trained; the rest is held out. The reward of each is
``equipoise.language.scoring.own:answered``.
"""

from __future__ import annotations

import inspect
import json
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path

import numpy as np

from equipoise import foreign
from equipoise.hints import hint, raised
from equipoise.language import messages, reasoning, stores, task_files
from equipoise.language.text_task import TextTask, letters
from equipoise.language.tokenizers import CharTokenizer
from equipoise.language.turns import openenv, openings, own, partner, verifiers
from equipoise.naming import called
from equipoise.seeds import derive_seed
from equipoise.types.packed import Example

ANSWERED = "equipoise.language.scoring.own:answered"
REASONING = "reasoning_gym:"
HELD_OUT = 500  # the most held-out prompts of a file; a tenth of the file if that is less
MOST_ROWS = 4_000_000  # of a user's function, which may be an endless generator
TRAINED = 0.75  # of the inputs of a built-in task
# tokens of a sample beyond the longest answer: the end, and one more
SPARE = 2
DEADLINE_S = 60.0  # of a partner that begins a conversation


def built_in(name: str, seed: int) -> TextTask:
    """The built-in task of this name; ``seed`` decides which inputs are held out."""
    if name in CONVERSATIONS:
        return _built_in_conversation(name, CONVERSATIONS[name], seed)
    if name not in BUILT_IN:
        raise ValueError(
            f"unknown task {name!r}{hint(name, {**BUILT_IN, **CONVERSATIONS}).rstrip('.')}; others "
            "are FILE.jsonl, FILE.parquet, reasoning_gym:NAME, openenv:URL, verifiers:NAME and "
            "module:callable"
        )
    alphabet, make = BUILT_IN[name]
    examples = [
        Example(prompt=prompt, columns={"answer": answer}, completion=answer)
        for prompt, answer in make()
    ]
    train, held_out = split(examples, TRAINED, seed)
    longest = max(len(one.completion) for one in examples)
    return TextTask(
        name=name,
        train=train,
        held_out=held_out,
        tokenizer=CharTokenizer(alphabet),
        reward=ANSWERED,
        quick=True,
        completion=longest + SPARE,
    )


def make(
    target: str,
    *,
    seed: int,
    arguments: Mapping[str, object] | None = None,
    rows: task_files.ReadRows = task_files.examples,
    deadline_s: float = DEADLINE_S,
) -> TextTask:
    """The task that ``target`` names; ValueError names the nearest. ``rows`` reads those of a file
    or of a callable; ``deadline_s``: seconds for a partner to begin a conversation.

    ::

        sort, reverse_add, copy   a built-in task, which takes no arguments
        guess, calculator, lookup built-in conversations, which take no arguments
        FILE.jsonl, FILE.parquet  prompts in a file; ``held_out=FILE`` has the held-out ones, else a seeded part is held out
        FOLDER/                   the answered queries of a store of preferences; ``upto=ROW`` reads its answers up to a row
        reasoning_gym:NAME        a data set of that package; ``size`` and ``held_out`` are counts, the others are its settings
        openenv:URL               an OpenEnv server; arguments as in ``turns/openenv.py``
        verifiers:NAME            a taskset of that package, which is imported; the arguments are its settings
        module:callable           called with the arguments (and ``seed``, where its signature names it); it returns a
                                  ``TextTask``, or rows as in a file
        module:Class              a partner of conversations (``turns/partner.py``), whose ``rows`` is called with the arguments
    """  # noqa: E501
    given = dict(arguments or {})
    if target.endswith(task_files.SUFFIXES):
        return apart(_of_rows(target, _only(target, given, "held_out"), seed, rows))
    if stores.is_store(target):
        upto = _only(target, given, stores.UPTO).get(stores.UPTO)
        return apart(_parted(target, rows(stores.rows(target, upto), target, "query"), seed))
    if target.startswith(REASONING):
        return reasoning.read(target.removeprefix(REASONING), given, seed)
    if target.startswith(openenv.PREFIX):
        world = openenv.World.of(target, given, deadline_s)
        made = of_examples(target, world.examples(), seed)
        return replace(made, make=world.partner, seats=world.seats, ready=world.ready)
    if target.startswith(verifiers.PREFIX):
        env = verifiers.World.of(target, given)
        made = of_examples(target, env.examples(deadline_s), seed)
        return replace(made, make=env.partner)
    if ":" in target:
        return apart(_called(target, given, seed, rows, deadline_s))
    if target not in {**BUILT_IN, **CONVERSATIONS} and Path(target).exists():
        raise ValueError(f"task {target!r}: {task_files.wrong_end(Path(target))}")
    task = built_in(target, seed)
    _only(target, given)
    return task


def arguments(given: Sequence[str], what: str = "arguments") -> dict[str, object]:
    """KEY=VALUE texts as arguments of a task, or of ``what``: JSON if it parses, else texts."""
    found = dict[str, object]()
    for one in given:
        key, equals, value = (part.strip() for part in one.partition("="))
        if not (key.isidentifier() and equals):
            raise ValueError(
                f"source.{what}: expected KEY=VALUE, with commas between several, got {one!r}"
            )
        if key in found:
            raise ValueError(f"source.{what}: expected {key} once, got it twice")
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError:
            found[key] = value
    return found


def _only(target: str, given: dict[str, object], *known: str) -> dict[str, object]:
    for name in given:
        if name not in known:
            raise ValueError(f"task {target!r}: unknown argument {name!r}{hint(name, known)}")
    return given


def _of_rows(
    target: str, given: Mapping[str, object], seed: int, rows: task_files.ReadRows
) -> TextTask:
    examples = task_files.read(Path(target), rows)
    if "held_out" in given:
        if not str(given["held_out"]).endswith(task_files.SUFFIXES):
            wanted = " or ".join(task_files.SUFFIXES)
            raise ValueError(
                f"task {target!r}: held_out: expected a file that ends in {wanted}, got "
                f"{given['held_out']!r}"
            )
        held_out = task_files.read(Path(str(given["held_out"])), rows)
        if missing := sorted({*examples[0].columns} - {*held_out[0].columns}):
            raise ValueError(
                f"{given['held_out']}: expected the columns of {target}, got none named "
                f"{missing[0]!r}"
            )
        return TextTask(
            name=target,
            train=examples,
            held_out=held_out,
            tokenizer=letters([*examples, *held_out]),
        )
    return _parted(target, examples, seed)


def apart(task: TextTask) -> TextTask:
    """The task without training rows that share a held-out prompt, with notes on equal prompts.

    Conversations with equal prompts are kept, since their rows differ.
    """
    if task.partner:
        return task
    held_out = {messages.asked(one) for one in task.held_out}
    asks = [messages.asked(one) for one in task.train]
    train = [one for one, ask in zip(task.train, asks, strict=True) if ask not in held_out]
    notes, shared = (
        list(task.notes),
        [one for one, ask in zip(task.train, asks, strict=True) if ask in held_out],
    )
    if not train:
        raise ValueError(
            f"task {task.name!r}: expected rows that ask anything else than the {len(held_out):,} "
            "held-out prompts, got none "
            f"among {len(asks):,}"
        )
    if shared:
        first = f", {shared[0].at} first" if shared[0].at else ""
        notes.append(
            f"warning: {len(shared):,} of {len(asks):,} rows of {task.name} ask what a held-out "
            f"row asks{first}: they are left "
            "out of what is learned from"
        )
    rows, different = len(asks) + len(task.held_out), len({*asks, *held_out})
    if different < rows - len(shared):
        notes.append(
            f"{task.name}: {rows:,} rows ask {different:,} different prompts; no prompt is both "
            "learned and held out"
        )
    return replace(task, train=train if shared else task.train, notes=tuple(notes))


def _parted(name: str, examples: Sequence[Example], seed: int) -> TextTask:
    different = len({messages.asked(one) for one in examples})
    if different < 2:
        got = f"{different}" + (f" in {len(examples):,} rows" if len(examples) > 1 else "")
        raise ValueError(
            f"task {name!r}: expected at least 2 prompts, one to be held out, got {got}; rows that "
            "ask the same are one; add "
            "rows that ask something else, or name a file of others: --set "
            "source.arguments=held_out=FILE"
        )
    most = min(different // 10, HELD_OUT) or 1
    train, held_out = split(examples, 1 - most / different, seed)
    return TextTask(name=name, train=train, held_out=held_out, tokenizer=letters(examples))


def _called(
    target: str,
    given: dict[str, object],
    seed: int,
    read: task_files.ReadRows,
    deadline_s: float,
) -> TextTask:
    function = called(target, "task")
    is_partner = inspect.isclass(function) and foreign.calls(function, *partner.METHODS)
    if is_partner:
        function = called(f"{target}.rows", "task")
    known = inspect.signature(function).parameters
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values()):
        _only(target, given, *known)
    if "seed" in known:
        given.setdefault("seed", seed)
    try:
        inspect.signature(function).bind(**given)
    except TypeError as error:
        raise ValueError(
            f"task {target!r}: expected its arguments (source.arguments=KEY=VALUE), got {error}"
        ) from None
    try:
        made = function(**given)
        rows = (
            list(islice(made, MOST_ROWS + 1))
            if isinstance(made, Iterable) and not isinstance(made, TextTask)
            else made
        )
    except (Exception, SystemExit) as error:  # whatever a user's function raises
        raise ValueError(f"task {target!r}: expected rows, got {raised(error)}") from error
    if isinstance(rows, TextTask):
        return rows
    if not isinstance(rows, list):
        raise ValueError(
            f"task {target!r}: expected a TextTask or rows with a prompt, got "
            f"{type(made).__name__} {made!r:.80}"
        )
    if len(rows) > MOST_ROWS:
        raise ValueError(f"task {target!r}: must have at most {MOST_ROWS:,} rows, got more")
    if is_partner:
        return _of_partner(target, rows, seed, deadline_s)
    return _parted(target, read(enumerate(rows, 1), f"task {target!r}", "row"), seed)


def _of_partner(target: str, rows: Sequence[object], seed: int, deadline_s: float) -> TextTask:
    """Return the task of a user's partner: a prompt for each row, with a seeded tenth held out."""
    examples = openings.examples(partner.load(target), rows, f"task {target!r}", deadline_s)
    return of_examples(target, examples, seed)


def of_examples(name: str, examples: Sequence[Example], seed: int) -> TextTask:
    """Return a task of conversations by a partner's name; a seeded tenth is held out."""
    if len(examples) < 2:
        raise ValueError(f"task {name!r}: must have at least 2 rows, got {len(examples)}")
    most = min(len(examples) // 10, HELD_OUT) or 1
    train, held_out = _split(examples, range(len(examples)), len(examples) - most, seed)
    return TextTask(
        name=name,
        train=train,
        held_out=held_out,
        tokenizer=letters(examples, string.printable),
        partner=name,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conversation:
    """A built-in task of conversations: its partner, rows and limits."""

    partner: type[partner.Partner]
    rows: Callable[[], Sequence[Mapping[str, object]]]
    alphabet: str
    turns: int
    tokens: int  # most tokens of a conversation
    turn_tokens: int = 0  # most tokens of a turn; 0: no limit
    trained: float = TRAINED  # share of the rows; 1: evaluations ask all of them


def _built_in_conversation(name: str, task: _Conversation, seed: int) -> TextTask:
    made = task.partner()
    examples = [
        Example(prompt=partner.opening(made, row, partner.settled), columns=row)
        for row in task.rows()
    ]
    count = len(examples)
    train, held_out = _split(examples, range(count), round(count * task.trained), seed)
    return TextTask(
        name=name,
        train=train,
        held_out=held_out,
        tokenizer=CharTokenizer(task.alphabet),
        quick=True,
        completion=task.tokens,
        partner=f"{task.partner.__module__}:{task.partner.__qualname__}",
        turns=task.turns,
        turn_tokens=task.turn_tokens,
    )


def split(
    examples: Sequence[Example], share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """A seeded ``share`` of the different prompts, and the rest, in the order of ``examples``."""
    asks = [messages.asked(one) for one in examples]
    number = {ask: i for i, ask in enumerate(dict.fromkeys(asks))}
    return _split(examples, [number[ask] for ask in asks], round(share * len(number)), seed)


def _split(
    examples: Sequence[Example], numbers: Sequence[int], trained: int, seed: int
) -> tuple[list[Example], list[Example]]:
    """Return the examples of a seeded choice of ``trained`` numbers, and the others, in order.

    ``numbers``: of each example; examples of one number stay together.
    """
    rng = np.random.default_rng(derive_seed(seed, "held out"))
    order = rng.permutation(len(set(numbers)))
    kept = {int(i) for i in order[:trained]}
    train, held_out = list[Example](), list[Example]()
    for one, number in zip(examples, numbers, strict=True):
        (train if number in kept else held_out).append(one)
    return train, held_out


def _sort() -> list[tuple[str, str]]:
    return [(f"{''.join(one)}>", "".join(sorted(one))) for one in product("012", repeat=6)]


def _reverse_add() -> list[tuple[str, str]]:
    return [(f"{a:02}+{b:02}=", f"{a + b:03}"[::-1]) for a in range(100) for b in range(100)]


def _copy() -> list[tuple[str, str]]:
    return [
        (f"{''.join(one)}>", "".join(one))
        for length in range(1, 7)
        for one in product("abc", repeat=length)
    ]


BUILT_IN: dict[str, tuple[str, Callable[[], list[tuple[str, str]]]]] = {
    "sort": ("012>", _sort),  # 201102> 001122: 729 inputs
    # 58+64= 221, the sum's last digit first: 10,000 inputs
    "reverse_add": ("0123456789+=", _reverse_add),
    "copy": ("abc>", _copy),  # abca> abca, of 1 to 6 letters: 1,092 inputs
}
_GUESS = _Conversation(
    partner=own.Guess,
    rows=own.guesses,
    alphabet=own.NUMBERS + "<>?",
    turns=own.GUESSES,
    tokens=2 * own.GUESSES,
    turn_tokens=1,
    trained=1.0,
)
_DIGITS = "0123456789=#?"
CONVERSATIONS: dict[str, _Conversation] = {
    "guess": _GUESS,  # d > f < e: 7 numbers
    # 12*13 #12*13 =156 156: 900 products
    "calculator": _Conversation(
        partner=own.Calculator,
        rows=own.products,
        alphabet=_DIGITS + "+-*",
        turns=2,
        tokens=24,
        turn_tokens=7,
    ),
    # bob #bob =48 48: 8 people
    "lookup": _Conversation(
        partner=own.Lookup,
        rows=own.people,
        alphabet=_DIGITS + "".join(sorted({one for name in own.PEOPLE for one in name})),
        turns=2,
        tokens=20,
        turn_tokens=5,
        trained=1.0,
    ),
}
