"""Text as rows: tokens of samples without padding, the spec of a network for text, and the examples
of a task.

Letters used here and wherever text is learned from: ``N`` tokens, ``M`` samples, ``G`` groups. A
sample is a completion of a prompt; a group is the samples of one prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol

from equipoise.types.rows import Array, Resume, Stack

Fields = Mapping[str, Any]  # of a dataclass or of config.json


class Stop(IntEnum):
    """How a sample ended."""

    OPEN = 0  # it has not
    EOS = 1  # the model ended it
    LENGTH = 2  # the limit of tokens cut it
    TEXT = 3  # a stop string
    FAILED = 4  # the partner of a conversation failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Groups of samples, one behind the other. A group's prompt stands once, before the group's
    samples.

    Token n was drawn after the tokens before it in its sample, and its group's prompt, had been
    seen; ``logp``, ``version`` and ``reward`` are about the drawing of token n itself.
    """

    token: Array  # [N] int64
    # [N] int64, its place in the text: the first token of a prompt is at 0, that of a sample at
    # len(prompt)
    position: Array
    # [N] int64, the sample that it is part of; -1: part of the prompt before the group's samples
    sample: Array
    chosen: Array  # [N] bool, drawn by the model; False: of the prompt, or written by a tool
    logp: Array  # [N] float32, of the drawing, at the temperature of then; 0 if not chosen
    version: Array  # [N] int64, the weights that drew it; -1 if not chosen
    reward: Array  # [N] float32, a sample's reward at its last token, 0 elsewhere
    prompt: Array  # [M] int64, tokens of its prompt
    group: Array  # [M] int64, 0..G-1, ascending
    stop: Array  # [M] int64, a Stop
    task: Array  # [M] int64, the number of its prompt in the task
    # [M] int64, how many earlier groups here were dropped because all their rewards were equal
    refills: Array
    longest: int = 0  # tokens that a sample may have
    # [M] int64, of conversations: the turns whose text has other tokens; None: samples of one turn
    retokenized: Array | None = None
    # [M] of engines with one memory of keys and values: how often a sample was given back, and the
    # load of the memory as it ended, nan if it is not known; None: other engines
    given_back: Array | None = None
    kv_load: Array | None = None
    # [N] int64, the part of a conversation that a token is in: a part sees the prompt and itself,
    # and its positions follow the prompt's; None: samples of one part
    part: Array | None = None


PACKED_TOKENS = ("token", "position", "sample", "chosen", "logp", "version", "reward")  # [N]
PACKED_SAMPLES = ("prompt", "group", "stop", "task", "refills")  # [M]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpec:
    """The facts about a task and a model that a network for text needs, as an ``EnvSpec``."""

    model: Fields  # of a DecoderConfig, or of a HubConfig
    # a directory whose safetensors the network begins with; "": it begins at random
    weights: str = ""
    # of adapters, the fields of a ``Lora``; {}: the whole model learns
    lora: Fields = field(default_factory=dict)
    # a folder with the adapters that the network begins with; "": they begin fresh
    adapter: str = ""
    eos: tuple[int, ...]  # the tokens that end a sample
    prompt: int  # most tokens of a prompt
    completion: int  # most tokens of a sample
    turns: int = 0  # most turns of a conversation; 0: samples have one turn
    parts: bool = False  # do samples have parts, since the history is rendered before each turn?
    # has a token the same log-probability, to the bit, whatever is computed with it?
    batch_invariant: bool = False
    prompts: int = 0  # that are learned from
    full: float = 1.0  # the reward of a sample that passes
    sha256: str = ""  # of the prompts, so that a resumed run checks that they are the same
    alphabet: str = ""  # of a tokenizer of characters; "": the tokenizer has files of its own
    chat: bool = False  # are the prompts messages?
    notes: tuple[str, ...] = ()
    settings: str = ""
    # The part in common with an env: one agent, whose samples begin again after a resume and are
    # the same.
    agents: ClassVar[tuple[str, ...]] = ("",)
    places: ClassVar[tuple[int, ...]] = (0,)
    frame_skip: ClassVar[int] = 1
    observation: ClassVar[None] = None
    stacks: ClassVar[Mapping[str, Stack]] = {}
    resume: ClassVar[Resume] = "exact"


Prompt = str | Sequence[Mapping[str, object]]  # a text, or messages {"role", "content"}


def begun(prompt: Prompt) -> tuple[Prompt, str]:
    """Split a prompt from the assistant's begun answer at its end ("" if there is none)."""
    if isinstance(prompt, str) or prompt[-1]["role"] != "assistant":
        return prompt, ""
    return prompt[:-1], str(prompt[-1]["content"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A prompt of a task, and further arguments of its rewards."""

    prompt: Prompt
    columns: Mapping[str, object] = field(default_factory=dict)  # values that JSON has, by name
    completion: str = ""  # the wanted one, if the task knows it; ``sft`` learns it
    # in its place: the messages of a conversation after the prompt. ``sft`` learns the assistant's,
    # the first and the last of them
    turns: Sequence[Mapping[str, object]] = field(default=(), repr=False)
    # arguments of the chat template, such as tools
    template: Mapping[str, object] = field(default_factory=dict, repr=False)
    # the file and line or row that it is from, for errors
    at: str = field(default="", compare=False, repr=False)


class Tokenizer(Protocol):
    """Text to tokens and back."""

    @property
    def size(self) -> int: ...  # tokens that there are
    @property
    def eos(self) -> tuple[int, ...]: ...  # the tokens that end a sample
    @property
    def pad(self) -> int: ...  # not a token of ``eos``
    # tokens that a model's config.json names, by their fields there
    @property
    def special(self) -> Mapping[str, int]: ...
    # a completion's form: nothing is put before or behind it
    def encode(self, text: str) -> list[int]: ...
    def decode(self, token: Sequence[int]) -> str: ...  # without the end
    def save(self, directory: Path) -> None: ...  # as files that transformers reads
    def prompt(self, prompt: Prompt, template: Mapping[str, object] = ...) -> list[int]: ...

    # with what begins a text; of messages, by the chat template with these arguments, with the
    # assistant's turn begun

    # the tokens between a turn of the assistant and its next one: ``answer`` as it is, or messages
    # as the chat template writes them; ``ended``: did the turn's last token end it?
    def between(
        self,
        prompt: Prompt,
        answer: Prompt,
        *,
        ended: bool,
        template: Mapping[str, object] = ...,
    ) -> list[int]: ...
    # the tokens of a conversation's messages after the prompt, and which of them the assistant
    # wrote, its ends among them
    def conversation(
        self,
        prompt: Prompt,
        turns: Sequence[Mapping[str, object]],
        template: Mapping[str, object] = ...,
    ) -> tuple[list[int], list[bool]]: ...
    # ValueError for a chat template that changes earlier turns
    def check_appends(self, prompt: Prompt, template: Mapping[str, object] = ...) -> None: ...
    # the number of a prompt's first tokens that a chat template keeps when the answer and another
    # message follow; ValueError if it changes the messages
    def kept(self, prompt: Prompt, template: Mapping[str, object] = ...) -> int: ...


class Task(Protocol):
    """Prompts to learn from, prompts that are held out, and the task's own reward if it has one."""

    @property
    def name(self) -> str: ...
    @property
    def train(self) -> Sequence[Example]: ...
    @property
    def held_out(self) -> Sequence[Example]: ...
    @property
    def tokenizer(self) -> Tokenizer | None: ...  # None: that of the model
    @property
    # its own reward as module:function; "" for a task without a reward
    def reward(self) -> str: ...
    # that reward takes microseconds and is ours: no process, no deadline
    @property
    def quick(self) -> bool: ...
    # most tokens of a sample, if no setting gives the number; 0: unknown
    @property
    def completion(self) -> int: ...
    # the partner of conversations as module:Class, whose rewards are the task's own; "": a sample
    # has one turn
    @property
    def partner(self) -> str: ...
    # makes the partner of one conversation; None: the class that ``partner`` names
    @property
    def make(self) -> Callable[[], object] | None: ...
    # most conversations of a run that may have a partner at the same time; 0: no limit
    @property
    def seats(self) -> int: ...
    # called once before a run with the number of processes that share the seats; ValueError if they
    # cannot have them
    @property
    def ready(self) -> Callable[[int], None] | None: ...
    # most turns of a conversation, if no setting gives the number; 0: unknown
    @property
    def turns(self) -> int: ...
    # most tokens of a turn, if no setting gives the number; 0: no limit
    @property
    def turn_tokens(self) -> int: ...
