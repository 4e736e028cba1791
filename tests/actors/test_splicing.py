"""Calls of agents that send texts back: the drawn tokens take the place of the text's own, if the
chat template wrote the same text.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.actors.calls.records import prefixes
from equipoise.actors.calls.splicing import Splicer
from equipoise.language.tokenizers import HubTokenizer
from equipoise.nets.decoder import Decoder
from equipoise.serving.proxy.requests import keys
from equipoise.types import Stop, TextSpec
from tests.actors.calling import Agent, Ring, learned
from tests.actors.chat_tokenizers import KINDS, saved
from tests.actors.decoders import small_decoder
from tests.actors.test_calls import counts, rewarded

LENGTH, NUMBERS = 512, itertools.count()
Message = dict[str, Any]


def net(size: int, end: int) -> Decoder:
    """A network whose texts often end."""
    made = small_decoder(words=size, length=LENGTH)
    with torch.no_grad():
        made.model.embed_tokens.weight[end] *= 4
    return made


def ringed(tokenizer: HubTokenizer, **limits: Any) -> Ring:
    spec = TextSpec(model={}, eos=tokenizer.eos, prompt=64, completion=LENGTH - 64, turns=8)
    splicer = Splicer(tokenizer.decode, tokenizer.eos, LENGTH)
    made = partial(net, tokenizer.size, tokenizer.eos[0])
    return Ring(max_lag=None, per_batch=1, spec=spec, net=made, splicer=splicer, **limits)


class Talker(Agent):
    """An agent that sends its messages, and adds the answer's text to them."""

    def __init__(self, tokenizer: HubTokenizer, messages: Sequence[Message], **more: Any) -> None:
        self.tokenizer, self.messages = tokenizer, list(messages)
        known = keys(messages)
        history = [
            key for key, one in zip(known, messages, strict=True) if one["role"] == "assistant"
        ]
        super().__init__(
            tokenizer.prompt(self.messages),
            id=f"chatcmpl-{next(NUMBERS)}",
            history=history[::-1],
            fresh=not history,
            **more,
        )

    @property
    def said(self) -> str:
        return self.tokenizer.decode(self.token_ids[0])

    def ended(self, index: int) -> tuple[Sequence[Mapping[str, object]], str]:
        messages = [*self.messages, {"role": "assistant", "content": self.said}]
        return messages, keys(messages)[-1]


def asked(ring: Ring, one: Talker) -> Talker:
    ring.worker.inbox.put(lambda: ring.worker.ask(one.call))
    return one


def answered(ring: Ring, one: Talker) -> Talker:
    asked(ring, one)
    for _ in range(1000):
        if one.done:
            return one
        ring.worker.tick()
    raise AssertionError("no answer in 1,000 ticks")


def solid(text: str) -> str:
    return "".join(text.split())


def user(text: str) -> Message:
    return {"role": "user", "content": text}


APPENDED = ("as it is", "strips white space", "adds a newline", "ends with a space")


@pytest.mark.parametrize(
    ("template", "kind", "wanted"),
    [(template, kind, 20) for template in APPENDED for kind in KINDS]
    + [pytest.param("as it is", "byte-level", 1000, marks=pytest.mark.thorough)],
)
def test_conversations_of_texts_are_one_sample_each(
    template: str, kind: str, wanted: int, tmp_path: Path
) -> None:
    """Agents with shared first prompts; every prompt is what was read, appended to what was drawn,
    as a conversation in this process is.
    """
    tokenizer, draw = saved(tmp_path, kind, template), random.Random(3)
    # a busy machine may need minutes
    ring = ringed(tokenizer, reward_s=1e6, group_s=1e6)
    begun, talks = 0, list[dict[str, Any]]()
    whole, others = Counter[tuple[int, ...]](), 0
    while begun < wanted or talks:
        while len(talks) < 30 and begun < wanted:
            begun += 1
            first = [user(("the cat", "the rat", "a hat")[begun % 3])]
            if begun % 3:
                first.insert(0, {"role": "system", "content": "sat on the mat"})
            names = {"conversation": f"talk {begun}"}
            talks.append({"messages": first, "left": draw.randint(2, 4), "names": names})
        for talk in list(talks):
            one: Talker | None = talk.get("asked")
            if one is not None and not one.done:
                continue
            if one is not None:
                assert one.failed is None
                drawn, ended = one.token_ids[0], one.stopped[0] == Stop.EOS
                prompt, given = list(ring.engine.prompts[one.call.group]), one.call.prompt
                if template == "adds a newline":  # which may be the answer's own
                    rest = prompt[len(talk["drawn"]) :]
                    assert prompt[: len(talk["drawn"])] == talk["drawn"]
                    assert given[len(given) - len(rest) :] == rest
                    assert solid(tokenizer.decode(prompt)) == solid(tokenizer.decode(given))
                else:
                    assert prompt == talk["read"]
                answer = {"role": "assistant", "content": one.said.strip() if talk["left"] % 2
                          else one.said}  # fmt: skip
                messages, later = talk["messages"], user(draw.choice(("go on", " at\nthe end ")))
                between = tokenizer.between(messages, [later], ended=ended)
                talk["drawn"], talk["read"] = [*prompt, *drawn], [*prompt, *drawn, *between]
                talk["messages"] = [*messages, answer, later]
                text = tokenizer.prompt(talk["messages"])
                # a torn character may be the first byte of the one that stands for it
                if text[: len(talk["drawn"])] == talk["drawn"]:
                    talk["read"] = text
                others += talk["left"] > 0 and talk["read"] != text
                if not talk["left"]:
                    whole[(*prompt, *drawn)] += 1
                    rewarded(ring, one.call.names.id, draw.random())
                    talks.remove(talk)
                    continue
            else:
                talk["drawn"], talk["read"] = [], tokenizer.prompt(talk["messages"])
            talk["left"] -= 1
            made = Talker(tokenizer, talk["messages"], limit=draw.randint(1, 12), **talk["names"])
            talk["asked"] = asked(ring, made)
        ring.worker.tick()
        if draw.random() < 0.05:
            ring.learn()
    ring.worker.conversations.sweep(1e9)
    ring.settle(wanted)
    found, count = learned(ring), counts(ring)
    assert count["forks"] == 0 and count["spliced"] == others > wanted / 2
    assert count["learned"] == count["calls"] - count["alone"] == len(found)
    drawn_by_engine = Counter(
        (ring.engine.prompts[group], *(tuple(x.tolist()) for x in (s.token, s.logp, s.version)))
        for (group, _), s in ring.engine.samples.items()
    )
    assert Counter((before, *drawn) for before, drawn, _ in found) <= drawn_by_engine
    # one sample a conversation, which holds all of it; one of each first prompt may be alone
    held = Counter((*before, *drawn[0]) for before, drawn, _ in found) & whole
    assert sum(whole.values()) == wanted
    assert wanted - 3 <= count["samples"] == sum(held.values())
    ring.close()


def talk(
    ring: Ring, tokenizer: HubTokenizer, turns: int = 3, name: str = "talk", **more: Any
) -> list[Talker]:
    """The calls of one agent that sends back what it got."""
    messages, calls = [user("the cat")], list[Talker]()
    for _ in range(turns):
        one = answered(ring, Talker(tokenizer, messages, conversation=name, **more))
        calls.append(one)
        messages = [*messages, {"role": "assistant", "content": one.said}, user("go on")]
    return calls


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", ["without the first word", "adds a special token"])
def test_a_template_that_writes_another_text_begins_another_sample(
    kind: str, template: str, tmp_path: Path
) -> None:
    tokenizer = saved(tmp_path, kind, template)
    ring = ringed(tokenizer)
    calls = talk(ring, tokenizer, limit=20)
    assert all(one.said for one in calls)
    assert (counts(ring)["forks"], counts(ring)["spliced"]) == (2, 0)
    for one in calls:
        assert list(ring.engine.prompts[one.call.group]) == list(one.call.prompt)
    ring.close()


def test_a_template_without_ends_goes_on_from_answers_that_were_cut(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path, "byte-level", "without ends")
    ring, forks = ringed(tokenizer), 0
    for number in range(12):
        calls = talk(ring, tokenizer, turns=2, name=f"talk{number}", limit=6)
        first, second = (list(ring.engine.prompts[one.call.group]) for one in calls)
        read = [*first, *calls[0].token_ids[0]]
        # the template's text has no end, or a token goes over the answer's edge
        if calls[0].stopped[0] == Stop.EOS or second[: len(read)] != read:
            assert second == list(calls[1].call.prompt)
        else:
            assert tokenizer.decode(second) == tokenizer.decode(calls[1].call.prompt)
        forks += second[: len(read)] != read
    assert counts(ring)["forks"] == forks < 12 and counts(ring)["spliced"] > 0
    ring.close()


def test_an_agent_that_changes_its_answer_begins_another_sample(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path, "byte-level", "as it is")
    ring = ringed(tokenizer)
    one = answered(ring, Talker(tokenizer, [user("the cat")], conversation="talk"))
    changed = [user("the cat"), {"role": "assistant", "content": one.said + "s"}, user("go on")]
    two = answered(ring, Talker(tokenizer, changed, conversation="talk"))
    assert list(ring.engine.prompts[two.call.group]) == list(two.call.prompt)
    other = [user("the rat"), {"role": "assistant", "content": one.said}, user("go on")]
    three = answered(ring, Talker(tokenizer, other, conversation="talk"))
    assert list(ring.engine.prompts[three.call.group]) == list(three.call.prompt)
    assert (counts(ring)["forks"], counts(ring)["spliced"]) == (2, 0)
    ring.close()


def test_a_retry_reads_the_drawn_tokens_too(tmp_path: Path) -> None:
    """A turn that is asked for twice, and once for four answers: each reads the same prompt."""
    tokenizer = saved(tmp_path, "byte-level", "as it is")
    ring = ringed(tokenizer)
    one = answered(ring, Talker(tokenizer, [user("the cat")], conversation="talk", limit=9))
    later = [user("the cat"), {"role": "assistant", "content": one.said}, user("go on")]
    made = [
        answered(ring, Talker(tokenizer, later, conversation="talk", samples=n)) for n in (1, 1, 4)
    ]
    prompts = {ring.engine.prompts[each.call.group] for each in made}
    read = [*ring.engine.prompts[one.call.group], *one.token_ids[0]]
    assert len(prompts) == 1 and list(*prompts)[: len(read)] == read != made[0].call.prompt
    assert counts(ring)["spliced"] == 6 and counts(ring)["forks"] == 5
    ring.close()


def test_equal_texts_of_other_tokens_without_names(tmp_path: Path) -> None:
    """Agents without names whose equal answers were drawn as other tokens: each prompt is the
    beginning of one sample, and each answer is in one sample.
    """
    tokenizer, draw = saved(tmp_path, "byte-level", "as it is"), random.Random(1)
    ring = ringed(tokenizer)
    talks = [
        {"messages": [user("the cat")], "left": draw.randint(1, 3), "asked": None}
        for _ in range(80)
    ]  # type: list[dict[str, Any]]
    while talks:
        for each in list(talks):
            one = each["asked"]
            if one is not None and not one.done:
                continue
            if one is not None:
                answer = {"role": "assistant", "content": one.said}
                each["messages"] = [*each["messages"], answer, user("go on")]
            if not each["left"]:
                ring.worker.conversations.reward(one.call.names.id, 1.0, time.monotonic())
                talks.remove(each)
                continue
            each["left"] -= 1
            each["asked"] = asked(ring, Talker(tokenizer, each["messages"], limit=1))
        ring.worker.tick()
    ring.worker.conversations.sweep(1e9)
    ring.settle(300)
    found, count = learned(ring), counts(ring)
    assert count["calls"] == len(found) + count["alone"]
    engine = Counter(
        (ring.engine.prompts[group], tuple(one.token.tolist()))
        for (group, _), one in ring.engine.samples.items()
    )
    assert Counter((before, drawn[0]) for before, drawn, _ in found) <= engine
    ring.close()


def test_a_prompt_that_would_be_too_long_is_the_texts_own(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path, "byte-level", "as it is")
    ring = ringed(tokenizer)
    one = answered(ring, Talker(tokenizer, [user("the cat")], conversation="talk", limit=20))
    mark = ring.worker.conversations._open["talk"].rows[0].marks[0]
    later = [user("the cat"), {"role": "assistant", "content": one.said}, user("go on")]
    prompt = tokenizer.prompt(later)
    splicer = Splicer(tokenizer.decode, tokenizer.eos, LENGTH)
    spliced = splicer.splice(mark, prompt, prefixes(prompt))
    assert spliced is not None and list(spliced) != prompt
    splicer.most = len(spliced)
    assert splicer.splice(mark, prompt, prefixes(prompt)) is None
    ring.close()
