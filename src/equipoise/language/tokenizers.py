"""Tokenizers: one of characters, which is plain data, and that of a Hugging Face model, read from a
directory.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise import schema
from equipoise.files import json_bytes, read_json, write_atomic
from equipoise.foreign import Foreign
from equipoise.hints import install, said, shortened
from equipoise.language import task_files
from equipoise.types.packed import Prompt, Tokenizer, begun

# the files of a Hugging Face tokenizer
TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
GENERATION = "generation_config.json"  # settings of generation next to them
END, PAD = "<eos>", "<pad>"  # names of the two in those files
# in no vocabulary: a character outside the alphabet is an error
UNKNOWN = "<unk>"
NO_ARGUMENTS: Mapping[str, object] = {}  # of a chat template
STRANGE = "\N{REPLACEMENT CHARACTER}"  # the text of a token that has no character
SENTINEL = "equipoise-turn"  # stands for a turn in a rendered chat template
# in a chat template, around what the assistant wrote
MARKS = re.compile(r"\{%[-+]?\s*generation\b")
# what to try in place of a chat template that changes earlier turns
RENDER = (
    "source.history=render, which learns from each prefix that was read, or one that keeps them"
)
MARK = "one that marks what the assistant wrote by {% generation %}"
END_WITHIN = 3  # a chat template writes the end of a turn within these tokens after it


@dataclass(frozen=True, slots=True)
class CharTokenizer:
    """One token for each character of ``alphabet``, then the end, then the pad."""

    alphabet: str
    _number: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        twice = [one for i, one in enumerate(self.alphabet) if one in self.alphabet[:i]]
        task_files.whole(self.alphabet, "alphabet")
        if not self.alphabet or twice:
            got = f"{twice[0]!r} twice" if twice else "none"
            raise ValueError(f"alphabet: expected at least one character, and each once, got {got}")
        object.__setattr__(self, "_number", {one: i for i, one in enumerate(self.alphabet)})

    @property
    def size(self) -> int:
        return len(self.alphabet) + 2

    @property
    def eos(self) -> tuple[int, ...]:
        return (len(self.alphabet),)

    @property
    def pad(self) -> int:
        return len(self.alphabet) + 1

    @property
    def special(self) -> dict[str, int]:
        return {"pad_token_id": self.pad}

    def encode(self, text: str) -> list[int]:
        """The token of each character; ValueError for a character outside the alphabet."""
        try:
            return [self._number[one] for one in text]
        except KeyError as error:
            at = text.index(error.args[0])
            raise ValueError(
                f"{shortened(repr(text))}, character {at + 1}: expected one of "
                f"{shortened(repr(self.alphabet))}, got {error.args[0]!r}; a text of other "
                "characters needs a model with a tokenizer of its own (--model DIR)"
            ) from None

    def decode(self, token: Sequence[int]) -> str:
        """The text without its end; a pad, or an end elsewhere, is shown as ``STRANGE``."""
        last = len(token) - (len(token) > 0 and token[-1] in self.eos)
        return "".join(
            self.alphabet[one] if 0 <= one < len(self.alphabet) else STRANGE for one in token[:last]
        )

    def prompt(self, prompt: Prompt, template: Mapping[str, object] = NO_ARGUMENTS) -> list[int]:
        if isinstance(prompt, str):
            return self.encode(prompt)
        raise no_template("the tokenizer of characters")

    def between(
        self,
        prompt: Prompt,
        answer: Prompt,
        *,
        ended: bool,
        template: Mapping[str, object] = NO_ARGUMENTS,
    ) -> list[int]:
        if isinstance(answer, str):
            return self.encode(answer)
        raise no_template("the tokenizer of characters")

    def conversation(
        self,
        prompt: Prompt,
        turns: Sequence[Mapping[str, object]],
        template: Mapping[str, object] = NO_ARGUMENTS,
    ) -> tuple[list[int], list[bool]]:
        raise no_template("the tokenizer of characters")

    def check_appends(
        self, prompt: Prompt, template: Mapping[str, object] = NO_ARGUMENTS
    ) -> None: ...

    def kept(self, prompt: Prompt, template: Mapping[str, object] = NO_ARGUMENTS) -> int:
        return len(self.prompt(prompt, template))

    def save(self, directory: Path) -> None:
        """Write it as files that transformers' AutoTokenizer reads."""
        special = {END: self.eos[0], PAD: self.pad}
        added = [
            {
                "id": number,
                "content": name,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for name, number in special.items()
        ]
        data = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "normalizer": None,
            "post_processor": None,
            "added_tokens": added,
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": r"[\s\S]"},
                "behavior": "Isolated",
                "invert": False,
            },
            "decoder": {"type": "Fuse"},
            "model": {
                "type": "WordLevel",
                "vocab": {**self._number, **special},
                "unk_token": UNKNOWN,
            },
        }
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": PAD,
            "clean_up_tokenization_spaces": False,
        }
        write_atomic(directory / TOKENIZER, json_bytes(data))
        write_atomic(directory / CONFIG, json_bytes(config))

    def to_json(self) -> dict[str, object]:
        return {"alphabet": self.alphabet}

    @classmethod
    def from_json(cls, data: Any, where: str = "tokenizer") -> CharTokenizer:
        """The tokenizer of ``to_json``; ValueError names the wrong place in ``where``."""
        schema.check(data, {"alphabet": schema.Text()}, where)
        return cls(data["alphabet"])


class HubTokenizer:
    """A Hugging Face tokenizer, read from a directory; no code of it is run."""

    def __init__(self, directory: Path) -> None:
        """ValueError if it has no tokenizer, or the tokenizer has no end token; ImportError: what
        to install.
        """
        if not any((directory / name).is_file() for name in (TOKENIZER, CONFIG)):
            got = "another kind of file" if directory.is_file() else "no such directory"
            got = "one without both" if directory.is_dir() else got
            raise ValueError(
                f"{directory}: expected a directory with {TOKENIZER} and {CONFIG}, got {got}"
            )
        self._directory, self._read = directory, _auto(directory)
        self._direct = self._decoder()
        own = self._read.eos_token_id
        self.eos: tuple[int, ...] = tuple(
            dict.fromkeys([*([] if own is None else [own]), *_ends(directory)])
        )
        if not self.eos:
            raise ValueError(
                f"{directory}: expected a tokenizer with a token that ends a text, got one "
                "without; name it as eos_token in "
                f"{CONFIG}"
            )
        self.size = max(self._read.get_vocab().values()) + 1
        named = {"pad_token_id": self._read.pad_token_id, "bos_token_id": self._read.bos_token_id}
        self.special = {name: int(token) for name, token in named.items() if token is not None}
        # The pad must not be an end, although many models have one token for both.
        others = [
            self._read.pad_token_id,
            self._read.unk_token_id,
            *self._read.all_special_ids,
            *range(self.size),
        ]
        self.pad: int = next(one for one in others if one is not None and one not in self.eos)

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def has_template(self) -> bool:
        """Has it a chat template?"""
        return bool(self._read.chat_template)

    def warm(self) -> None:
        """Import what the first prompt imports."""
        self.encode("a")
        importlib.import_module("transformers.utils.chat_template_utils")
        importlib.import_module("jinja2.sandbox")

    def save(self, directory: Path) -> None:
        """Write it as it was read, with the settings of generation next to it."""
        self._read.save_pretrained(str(directory))
        if (self._directory / GENERATION).is_file():
            write_atomic(directory / GENERATION, (self._directory / GENERATION).read_bytes())

    def encode(self, text: str) -> list[int]:
        return self._tokens(text, add_special_tokens=False)

    def _tokens(self, text: str, **how: object) -> list[int]:
        try:
            return list(self._read.encode(text, **how))
        except Exception as error:  # errors of tokenizers have no class of their own
            raise ValueError(
                f"{shortened(repr(text))}: expected a text that {self._directory} has tokens for, "
                f"got one with others ({error})"
            ) from error

    def _decoder(self) -> Callable[..., str] | None:
        """Return the decoder below transformers' own, which takes a third of its time; None if
        transformers changes its text.
        """
        from transformers import PreTrainedTokenizerFast

        plain = all(
            getattr(type(self._read), name, None) is getattr(PreTrainedTokenizerFast, name)
            for name in ("decode", "_decode")
        )
        if not plain or self._read.clean_up_tokenization_spaces:
            return None
        found: Callable[..., str] = self._read.backend_tokenizer.decode
        return found

    def decode(self, token: Sequence[int]) -> str:
        """The text without special tokens, as TRL gives it to rewards."""
        if self._direct is not None:
            return self._direct(list(token), skip_special_tokens=True)
        return str(self._read.decode(list(token), skip_special_tokens=True))

    def prompt(self, prompt: Prompt, template: Mapping[str, object] = NO_ARGUMENTS) -> list[int]:
        if isinstance(prompt, str):
            found = self._tokens(prompt)  # with what the model's texts begin with
            return (
                found[:-1]
                if found[-1:] and found[-1] in self.eos and self.encode(prompt)[-1:] != found[-1:]
                else found
            )
        if not self._read.chat_template:
            raise no_template(f"the tokenizer in {self._directory}")
        render = self._read.apply_chat_template
        ours = [
            name
            for name in template
            if name in inspect.signature(render).parameters and name not in ("tools", "documents")
        ]
        if ours:
            raise ValueError(
                "chat_template_kwargs: expected arguments of the chat template alone, got "
                f"{ours[0]!r}"
            )
        asked, beginning = begun(prompt)
        if beginning:
            how, asked = {"continue_final_message": True}, prompt
        else:
            how = {"add_generation_prompt": True}
        if any("tool_calls" in one for one in prompt[-1:]):
            raise ValueError(
                "prompt: expected a last message that can be answered, got a call of a tool "
                "without its answer"
            )
        if not asked:
            raise ValueError(
                "prompt: expected a message that is answered, got none but an empty one of the "
                "assistant"
            )
        try:
            return list(render([*asked], **how, **template, return_dict=False))
        except Exception as error:  # a template may raise any error
            roles = ", ".join(str(one["role"]) for one in prompt)
            raise ValueError(
                f"prompt: expected messages that the chat template in {self._directory} takes, got "
                f"{shortened(roles)}: "
                f"{shortened(said(error))}"
            ) from error

    def between(
        self,
        prompt: Prompt,
        answer: Prompt,
        *,
        ended: bool,
        template: Mapping[str, object] = NO_ARGUMENTS,
    ) -> list[int]:
        if isinstance(prompt, str) or isinstance(answer, str):
            return self.encode(str(answer))
        asked = _asked(prompt)
        begins = self._rendered(asked, template) + SENTINEL
        text = self._rendered([*asked, _turn(SENTINEL), *answer], template)
        if not text.startswith(begins):
            raise changes_turns(self._directory)
        tokens = self.encode(text[len(begins) :])
        if ended:  # the policy drew the end of its turn, so leave out the template's
            end = next((i for i, one in enumerate(tokens[:END_WITHIN]) if one in self.eos), -1)
            tokens = tokens[end + 1 :]
        return tokens

    def conversation(
        self,
        prompt: Prompt,
        turns: Sequence[Mapping[str, object]],
        template: Mapping[str, object] = NO_ARGUMENTS,
    ) -> tuple[list[int], list[bool]]:
        """What the assistant wrote is what a template puts between ``{% generation %}`` and
        ``{% endgeneration %}``. Without these marks it is what each of its messages adds to the
        text; ValueError if a later message changes an earlier one.
        """
        if isinstance(prompt, str):
            raise ValueError("expected a text after a prompt that is a text, got messages")
        if MARKS.search(str(self._read.chat_template or "")):
            return self._marked(prompt, turns, template)
        messages, tokens, chosen = [*prompt, *turns], list[int](), list[bool]()
        own = [i for i, one in enumerate(turns, len(prompt)) if one["role"] == "assistant"]
        for i, later in zip(own, [*own[1:], None], strict=True):
            begins = self._rendered(messages[:i], template)
            text = ends = self._rendered(messages[: i + 1], template, answering=False)
            if later is not None:
                text = self._rendered(messages[:later], template)
            if not (ends.startswith(begins) and text.startswith(ends)):
                raise changes_turns(self._directory, MARK)
            added = self.encode(text[len(begins) :])
            ended = [n for n, one in enumerate(added) if one in self.eos]
            if later is None and not ended:  # as after a completion
                added.append(self.eos[0])
                ended = [len(added) - 1]
            within = sum(one in self.eos for one in self.encode(ends[len(begins) :]))
            if not ended or within > 1:
                raise ValueError(
                    f"message {i + 1}: expected the assistant's turn to have one end, got "
                    f"{within}, in {shortened(repr(ends[len(begins) :]))}; a text must not spell "
                    "the end, and the chat template must write it"
                )
            if later is None:  # nothing after the last end is learned or read
                added = added[: ended[0] + 1]
            tokens += added
            chosen += [n <= ended[0] for n in range(len(added))]
        return tokens, chosen

    def _marked(
        self,
        prompt: Sequence[Mapping[str, object]],
        turns: Sequence[Mapping[str, object]],
        template: Mapping[str, object],
    ) -> tuple[list[int], list[bool]]:
        """The tokens of a template with marks, to the end of the last marked text."""
        begins = self.prompt(prompt, template)
        how = {"return_dict": True, "return_assistant_tokens_mask": True}
        whole = self._applied([*prompt, *turns], {**how, **template})
        given = [*whole["input_ids"]]
        chosen = [bool(one) for one in whole["assistant_masks"]][len(begins) :]
        if given[: len(begins)] != begins:
            raise changes_turns(self._directory, "one that keeps them")
        if True not in chosen:
            raise ValueError(
                f"the chat template in {self._directory}: must mark what the assistant wrote by "
                "{% generation %}, got a conversation without a marked token"
            )
        length = len(chosen) - chosen[::-1].index(True)
        tokens, chosen = given[len(begins) :][:length], chosen[:length]
        if tokens[-1] not in self.eos:
            tokens, chosen = [*tokens, self.eos[0]], [*chosen, True]
        return tokens, chosen

    def check_appends(self, prompt: Prompt, template: Mapping[str, object] = NO_ARGUMENTS) -> None:
        if isinstance(prompt, str):
            return
        asked = _asked(prompt)
        for turn in (SENTINEL, f"<think>\n{SENTINEL}\n</think>\n\n{SENTINEL}"):
            begins = self._rendered(asked, template) + turn
            later = [*asked, _turn(turn), {"role": "user", "content": SENTINEL}]
            if not self._rendered(later, template).startswith(begins):
                raise changes_turns(self._directory)
        answer = [{"role": "user", "content": SENTINEL}]
        whole = self.encode(self._rendered([*asked, _turn(SENTINEL), *answer], template))
        given = self.between(prompt, answer, ended=False, template=template)
        if whole[len(whole) - len(given) :] != given:
            raise ValueError(
                f"the chat template in {self._directory}: must end a turn with a token of its own, "
                "since a conversation is appended to, got an end within a token; try a "
                "template that ends turns with a special token"
            )

    def kept(self, prompt: Prompt, template: Mapping[str, object] = NO_ARGUMENTS) -> int:
        tokens = self.prompt(prompt, template)
        if isinstance(prompt, str):
            return len(tokens)
        asked = _asked(prompt)
        later = self.prompt(
            [*asked, _turn(SENTINEL), {"role": "user", "content": SENTINEL}], template
        )
        pairs = zip(tokens, later, strict=False)
        same = next((i for i, (one, two) in enumerate(pairs) if one != two), len(tokens))
        least = len(self._messages(asked, template))
        if same < least:
            raise ValueError(
                f"the chat template in {self._directory}: must write the prompt's messages as "
                f"before when others follow, got another text from token {same + 1} of {least} "
                "on; try a template that keeps them"
            )
        return same

    def _messages(
        self, messages: Sequence[Mapping[str, object]], template: Mapping[str, object]
    ) -> list[int]:
        """Return the tokens of messages, with no turn begun."""
        return list(self._applied(messages, {**template, "return_dict": False}))

    def _rendered(
        self,
        messages: Sequence[Mapping[str, object]],
        template: Mapping[str, object],
        *,
        answering: bool = True,
    ) -> str:
        """Return the text of messages; if ``answering``, with the assistant's next turn begun."""
        how = {"add_generation_prompt": answering, "tokenize": False}
        return str(self._applied(messages, {**how, **template}))

    def _applied(
        self, messages: Sequence[Mapping[str, object]], options: Mapping[str, object]
    ) -> Foreign:
        if not self._read.chat_template:
            raise no_template(f"the tokenizer in {self._directory}")
        try:
            return self._read.apply_chat_template([*messages], **options)
        except Exception as error:  # a template may raise any error
            roles = ", ".join(str(one["role"]) for one in messages)
            raise ValueError(
                f"the chat template in {self._directory}: must take messages of {roles}, got an "
                f"error: {shortened(said(error))}"
            ) from error


def changes_turns(directory: Path, fix: str = RENDER) -> ValueError:
    """Return the error of a chat template that changes earlier turns; ``fix``: what to try."""
    return ValueError(
        f"the chat template in {directory}: must keep earlier turns as they were written, since a "
        f"conversation is appended to, got one that changes them; try {fix}"
    )


def _asked(prompt: Sequence[Mapping[str, object]]) -> Sequence[Mapping[str, object]]:
    """Return the messages before the assistant's turn, which a prompt may begin."""
    return prompt[:-1] if prompt[-1]["role"] == "assistant" else prompt


def _turn(text: str) -> dict[str, object]:
    return {"role": "assistant", "content": text}


def _auto(directory: Path) -> Any:
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{directory}: its tokenizer needs transformers: {install('language')}"
        ) from error
    try:
        return AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the library of its fast tokenizers raises a plain Exception
        got = shortened(" ".join(said(error).split()), 200)
        if "custom code" in got:
            got = f"one with code of its own, which is not run; try a folder with {TOKENIZER}"
        raise ValueError(
            f"{directory}: expected a tokenizer that transformers reads, got {got}"
        ) from error


def _ends(directory: Path) -> list[int]:
    """The ends that the model's settings of generation name besides the tokenizer's own."""
    file = directory / GENERATION
    if not file.is_file():
        return []
    number = schema.Number(0, whole=True)
    data = read_json(file)
    wanted = {
        "eos_token_id?": schema.Maybe(schema.Either((number, schema.Items(number)))),
        "*": schema.Anything(),
    }
    schema.check(data, wanted, str(file))
    ends = data.get("eos_token_id")
    return [] if ends is None else [ends] if isinstance(ends, int) else ends


def no_template(which: str) -> ValueError:
    """The error of messages that a tokenizer cannot make a text of."""
    return ValueError(
        f"prompt: expected a text, since {which} has no chat template, got messages; take prompts "
        "that are texts, or the "
        "tokenizer of a chat model"
    )


def with_end(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
    """The tokens of a completion, without what ends them, and the end once: the one form in which
    completions are learned from and scored.
    """
    last = len(tokens)
    while last and tokens[last - 1] in tokenizer.eos:
        last -= 1
    return [*tokens[:last], tokenizer.eos[0]]


def fingerprint(tokenizer: Tokenizer) -> str:
    """Return the hash of a tokenizer's tokens and ends: equal for tokenizers that share their
    numbers, such as a task's and that of a model exported from it.
    """
    # a pad is in no text, and reads differently from files
    numbers = (number for number in range(tokenizer.size) if number != tokenizer.pad)
    tokens = [tokenizer.decode([number]) for number in numbers]
    said = [tokens, tokenizer.size, list(tokenizer.eos)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def check_fits(tokenizer: Tokenizer, vocabulary: int, where: str = "model") -> None:
    """ValueError unless the tokenizer has an end and ``vocabulary`` covers its tokens."""
    if not tokenizer.eos:
        raise ValueError(
            f"{where}: expected a tokenizer with a token that ends a text (eos_token), got one "
            "without"
        )
    if tokenizer.size > vocabulary:
        raise ValueError(
            f"{where}: expected an embedding with a row for each of the tokenizer's "
            f"{tokenizer.size:,} tokens, "
            f"got {vocabulary:,}; the nearest that fits is vocab_size={tokenizer.size}"
        )
    if max(tokenizer.eos) >= vocabulary:
        raise ValueError(
            f"{where}: must have ends below {vocabulary:,}, its vocabulary, got "
            f"{max(tokenizer.eos):,} in {GENERATION} or {CONFIG}"
        )
