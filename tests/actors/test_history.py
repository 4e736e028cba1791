"""Conversations whose history the chat template writes again: each prefix that was read is a part,
with its own tokens, and is learned from as it was read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.actors.engine.conversing import Bounds, ConversationSettings, Conversing
from equipoise.actors.engine.engine import Conversation, Sampled
from equipoise.actors.engine.torch_engine import PLACE, PROMPT, Ends, TorchEngine
from equipoise.language.tokenizers import HubTokenizer
from equipoise.nets import layout
from equipoise.nets.decoder import Decoder
from equipoise.nets.packing import pack, packed_texts, take
from equipoise.nets.token_logp import token_logp
from equipoise.sources import prompts
from equipoise.sources.prompts import fitting
from equipoise.types import Batch, Example, Stop, TaskSource, Trajectory
from tests.actors.decoders import small_decoder
from tests.language.test_tokenizers import words
from tests.language.test_turns import CHAT

LENGTH, LIMIT, SEED, WAIT_S, GROUPS = 160, 120, 3, 60.0, 4
ASKED = [{"role": "user", "content": "a b"}]
# keeps what follows the last c of a turn, as Qwen3 keeps what follows </think>
DROPS = CHAT.replace("{{ m.content }}", "{{ m.content.split('c')[-1] }}")
# begins a turn with a word that it does not keep, as Qwen3 does without thinking
BEGINS = DROPS.replace("<model> {% endif %}", "<model> a {% endif %}")


class Asks:
    """Answers three times."""

    def __init__(self) -> None:
        self.turns = 0

    def reset(self, row: Mapping[str, object]) -> Any:
        return ASKED

    def step(self, text: str) -> tuple[str | None, float]:
        self.turns += 1
        return (None if self.turns == 3 else "b"), 0.5


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def told(template: str, folder: Path) -> tuple[HubTokenizer, Decoder, list[int], list[Sampled]]:
    """The tokenizer, the network, the prompt, and the conversations of four groups of two."""
    hub = HubTokenizer(words(folder, template=template))
    net = small_decoder(words=hub.size, length=LENGTH)
    example = Example(prompt=ASKED, columns={})
    given = fitting([example], hub, LENGTH, {}, [], parts=True)
    settings = ConversationSettings(
        make=Asks,
        tokenizer=hub,
        template={},
        bounds=Bounds(turns=4, turn_tokens=6, answer_bytes=100, step_s=WAIT_S),
        row=lambda group: example,
        history=lambda group: given.begun[0],
    )
    inner = TorchEngine(net, rows=8, length=LENGTH, ends=Ends(hub.eos), seed=SEED)
    engine, found = Conversing(inner, settings), list[Sampled]()
    for group in range(GROUPS):
        engine.submit(group, given.token(0), 2, limit=LIMIT)
    ends = time.monotonic() + WAIT_S
    while engine.live or engine.waiting:
        assert time.monotonic() < ends
        found += engine.step()
    engine.close()
    order = sorted(found, key=lambda one: (one.group, one.index))
    return hub, net, [*given.token(0)], order


def talk(one: Sampled) -> Conversation:
    assert one.conversation is not None
    return one.conversation


def parts_of(one: Sampled) -> Any:
    """[L] the part of each token."""
    assert talk(one).part is not None
    return talk(one).part


def trajectory(samples: list[Sampled], prompt: list[int]) -> Trajectory:
    count = len(samples)
    token, logp, version, part = (np.zeros((1, count, LIMIT), np.int64) for _ in range(4))
    chosen, drawn = np.zeros((1, count, LIMIT), bool), logp.astype(np.float32)
    for i, one in enumerate(samples):
        size = len(one.token)
        token[0, i, :size], drawn[0, i, :size] = one.token, one.logp
        chosen[0, i, :size], part[0, i, :size] = talk(one).chosen, parts_of(one)
    number, flags = torch.arange(count), torch.ones((1, count), dtype=torch.bool)
    return Trajectory(
        obs={},
        action={"token": torch.tensor(token)},
        behaviour={
            "logp": torch.tensor(drawn),
            "version": torch.tensor(version),
            "chosen": torch.tensor(chosen),
            "part": torch.tensor(part),
            "length": torch.tensor([[len(one.token) for one in samples]]),
            "stop": torch.tensor([[int(one.stop) for one in samples]]),
        },
        reward=number[None].float(),
        mask=flags,
        bootstrap=~flags,
        first=flags,
        version=torch.zeros((1, count), dtype=torch.int64),
        state={},
        context={
            "prompt": torch.tensor([prompt] * count),
            "prompt_length": torch.full((count,), len(prompt)),
            "task": number,
            "group": number // 2,
            "refills": number * 0,
            "retokenized": number * 0,
        },
    )


@pytest.mark.parametrize("template", [DROPS, BEGINS, CHAT])
@pytest.mark.few(3)
def test_each_prefix_that_was_read_is_a_part_as_the_template_writes_it(
    template: str, tmp_path: Path
) -> None:
    hub, _, prompt, found = told(template, tmp_path)
    parts = 0
    for one in found:
        told_, turn = talk(one), 0
        assert one.stop == Stop.EOS and told_.turns == 3 and told_.reward == 1.5
        assert told_.part is not None and (np.diff(told_.part) >= 0).all()
        parts += told_.part[-1]
        before: list[Any] = [*ASKED]
        for at in np.flatnonzero(np.diff(told_.chosen, prepend=False) & told_.chosen):
            here = told_.part == told_.part[at]
            text = one.token[:at][here[:at]].tolist()
            wanted = hub.prompt(before)
            if len(wanted) == len(prompt) + len(text):  # else the template closes a cut turn
                assert prompt + text == wanted
            turn += 1
            before += told_.messages[2 * turn - 2 : 2 * turn]
        assert turn == 3
        if template == CHAT and not told_.retokenized:
            assert told_.part[-1] == 0  # each turn was appended
    assert parts > 0


@pytest.mark.parametrize("short", [0, 1 << 20])
@pytest.mark.parametrize("template", [DROPS, BEGINS])
@pytest.mark.few(4)
def test_the_learner_sees_each_part_as_the_engine_did(
    template: str, short: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "SHORT", short)
    _, net, prompt, found = told(template, tmp_path)
    data = pack(trajectory(found, prompt))
    with torch.no_grad():
        logp = token_logp(net, data)[0]
    assert data.chosen.sum() > 40 and (logp - data.logp)[data.chosen].abs().max() < 1e-5
    # as texts by themselves, one for each part
    texts = [
        (prompt, [one.token[parts_of(one) == part].tolist()])
        for one in found
        for part in np.unique(parts_of(one))
    ]
    apart = packed_texts(texts)
    with torch.no_grad():
        alone = token_logp(net, apart)[0]
    inside = data.sample >= 0
    assert torch.equal(data.position[inside], apart.position[apart.sample >= 0])
    gap = (logp[inside] - alone[apart.sample >= 0])[data.chosen[inside]]
    assert gap.abs().max() < 1e-5
    batch = Batch(data=data, keys=np.zeros((0, 2), np.int64), weight=logp, targets={"logp": logp})
    piece = take(batch, [torch.tensor([2, 3]), torch.tensor([6])])
    with torch.no_grad():
        cut = token_logp(net, piece.data)[0]
    assert (cut - piece.targets["logp"])[piece.data.chosen].abs().max() < 1e-5


def test_no_two_draws_of_a_conversation_share_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With equal chances of all tokens, turns drawn with the same numbers would be equal."""
    hub = HubTokenizer(words(tmp_path, template=DROPS))
    seen = list[int]()
    engine = TorchEngine(
        small_decoder(words=hub.size, length=LENGTH), rows=1, length=LENGTH, ends=Ends(), seed=1
    )

    def counted() -> torch.Tensor:
        seen.append(int(engine._rows[PLACE, 0] + 2 - engine._rows[PROMPT, 0]))
        return torch.zeros(1, dtype=torch.float64)

    monkeypatch.setattr(engine, "_uniform", counted)
    example = Example(prompt=ASKED, columns={})
    settings = ConversationSettings(
        make=Asks,
        tokenizer=hub,
        template={},
        bounds=Bounds(turns=4, turn_tokens=6, answer_bytes=100, step_s=WAIT_S),
        row=lambda group: example,
        quick=True,
        history=lambda group: [],
    )
    talking = Conversing(engine, settings)
    talking.submit(0, hub.prompt(ASKED), 1, limit=LIMIT)
    while talking.live or talking.waiting:
        talking.step()
    assert len(seen) == 18 == len(set(seen)) and min(seen) == 1


def test_a_template_must_write_the_prompt_again(tmp_path: Path) -> None:
    hub = HubTokenizer(words(tmp_path, template=CHAT.replace("in messages", "in messages[-1:]")))
    with pytest.raises(ValueError, match=r"must write the prompt's messages as before .* token 2"):
        hub.kept(ASKED)
    for template, kept in ((CHAT, 5), (DROPS, 5), (BEGINS, 5)):
        hub = HubTokenizer(words(tmp_path, template=template))
        assert hub.kept(ASKED) == kept
    assert len(hub.prompt(ASKED)) == 6 and hub.kept("a b") == 2


def test_a_turn_needs_room_behind_what_the_template_begins_it_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = DROPS.replace("<model> {% endif %}", "<model> a b a b {% endif %}")
    hub = HubTokenizer(words(tmp_path, template=longer))
    config = small_decoder(words=hub.size, length=LENGTH).config
    model = SimpleNamespace(config=config, notes=(), directory=None)
    monkeypatch.setattr(prompts, "model_of", lambda source, task: (model, hub))
    source = TaskSource(
        task="tests.runtime.talking:Chatting", history="render", completion_tokens=4
    )
    with pytest.raises(ValueError, match=r"completion_tokens: must be more than 4, .* got 4"):
        prompts.read(source, 1)
    assert max(map(len, prompts.read(replace(source, completion_tokens=5), 1).train.begun)) == 4
