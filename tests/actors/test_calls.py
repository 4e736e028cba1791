"""Calls on the ring: the learner's tokens are the engine's, each answer is learned from once, no
token is older than its bound, and every answer is in the ledger.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections import Counter
from typing import Any

import pytest

from equipoise.actors.calls.blocks import shared
from equipoise.actors.calls.ledger import REASONS
from equipoise.actors.calls.records import Answer, NotPossible, Row, hashed, prefixes
from equipoise.types import Stop, Tick
from tests.actors.calling import END, GROUP, WORDS, Agent, Ring, learned

ASK = [1, 2, 3]


def counts(ring: Ring) -> dict[str, int]:
    found = ring.ledger.counts()
    dropped = sum(found[one] for one in REASONS)
    assert found["calls"] == found["learned"] + dropped + found["open"]
    return found


def rewarded(ring: Ring, name: str, value: float | None = 1.0) -> None:
    ring.worker.conversations.reward(name, value, time.monotonic())


def refused(act: Any) -> tuple[int, str]:
    with pytest.raises(NotPossible) as caught:
        act()
    return caught.value.status, caught.value.sentence


@pytest.mark.parametrize(
    ("max_lag", "wanted"),
    [(1, 60), pytest.param(1, 1000, marks=pytest.mark.thorough)]
    + [pytest.param(lag, 200, marks=pytest.mark.thorough) for lag in (0, 3, None)],
)
def test_conversations_are_learned_from_as_they_were_drawn(
    max_lag: int | None, wanted: int
) -> None:
    """Random agents whose prompts share beginnings: some rewrite their history, fork it, use names,
    stop at a token, or leave.
    """
    draw, ring, begun = random.Random(7), Ring(max_lag=max_lag), 0
    talks: list[dict[str, Any]] = []
    said: dict[tuple[int, int], Agent] = {}
    for _ in range(100_000):
        while len(talks) < 60 and begun < wanted:
            begun += 1
            first = [1, 2, *([3] if begun % 3 else [4, 5])]
            named = {"conversation": f"talk {begun}"} if draw.random() < 0.5 else {}
            talks.append({"text": first, "turns": draw.randint(1, 4), "names": named, "ids": []})
        for talk in list(talks):
            one = talk.get("asked")
            if one is not None and not one.done and draw.random() < 0.01:
                ring.worker.cancel(one.call)
                talk["asked"], talk["turns"] = None, 0
            elif one is not None and not one.done:
                continue
            elif one is not None:
                assert one.failed is None
                said[one.call.group, 0] = one
                talk["ids"].append(one.call.names.id)
                rewrites = draw.random() < 0.2
                whole = [*one.call.prompt, *one.token_ids[0], draw.randint(1, WORDS - 1)]
                talk["text"] = whole if not rewrites else [1, 2, *whole[4:]]
                talk["turns"] -= 1
            if talk["turns"] <= 0:
                talks.remove(talk)
                if talk["ids"] and draw.random() < 0.97:
                    # refused if an equal conversation took its last turn, and has its reward
                    with contextlib.suppress(NotPossible):
                        rewarded(ring, talk["ids"][-1], draw.random())
                continue
            talk["asked"] = ring.ask(talk["text"], limit=draw.randint(1, 6), **talk["names"])
            talk["asked"].stop_at = 9 if draw.random() < 0.2 else None
        ring.worker.tick()
        if draw.random() < 0.05:
            ring.learn()
        if begun == wanted and not talks:
            break
    ring.worker.conversations.sweep(1e9)  # the rest of the groups
    ring.worker.conversations.sweep(2e9)
    ring.settle(3 * wanted)
    if len(ring.worker.spans) % 2:  # half a batch
        for _ in range(GROUP):
            one = ring.answered([1, 1])
            said[one.call.group, 0] = one
            rewarded(ring, one.call.names.id)
        ring.settle()
    found, count = learned(ring), counts(ring)
    assert len(found) == count["learned"] > (0.05 if max_lag == 0 else 0.2) * count["calls"]
    assert begun == wanted and count["forks"] > wanted / 20
    left = Counter((before, drawn[0]) for before, drawn, _ in found)
    engine = Counter(
        (ring.engine.prompts[group], tuple(said[group, index].token_ids[index]))
        for group, index in said
    )
    # what each learned answer was drawn after, and its tokens: once for each time it was drawn
    assert not left - engine
    drawn = dict[Any, int]()
    for (group, _), one in ring.engine.samples.items():
        numbers = one.token.tolist(), one.logp.tolist(), one.version.tolist()
        key = ring.engine.prompts[group], *(tuple(x) for x in numbers)
        drawn[key] = drawn.get(key, 0) + 1
    exact = [(before, *numbers) for before, numbers, _ in found]
    whole = [one for one in exact if one in drawn]
    # the others are those that a stop token cut, which the engine does not return
    assert len(whole) > 0.6 * len(exact) and all(9 in one[1] for one in exact if one not in drawn)
    assert Counter(whole) <= Counter(drawn)
    assert max_lag is None or max(ring.ages) <= max_lag
    assert min(ring.ages) >= 0
    ring.close()
    assert counts(ring)["open"] == 0


def test_a_call_that_continues_by_tokens_is_one_sample_and_a_rewritten_one_another() -> None:
    ring = Ring(max_lag=None, per_batch=1)
    for number in range(GROUP):
        first = ring.answered(ASK, conversation=f"talk {number}")
        drawn = first.token_ids[0]
        ring.answered([*ASK, *drawn, 7], conversation=f"talk {number}")
        ring.answered([*ASK, 7, 7], conversation=f"talk {number}")  # its history is rewritten
        rewarded(ring, f"talk {number}", float(number))
    ring.settle()
    first, second = ring.batches
    lengths = first["behaviour"]["length"][0]
    assert (lengths > second["behaviour"]["length"][0]).all()
    for data in (first, second):
        assert data["reward"][0].tolist() == [0.0, 1.0, 2.0, 3.0]
    found = counts(ring)
    assert (found["learned"], found["samples"], found["forks"]) == (3 * GROUP, 2 * GROUP, GROUP)
    assert found["calls"] == 3 * GROUP
    ring.close()


def test_without_names_tokens_tell_the_conversation_and_each_answer_is_learned_once() -> None:
    ring = Ring(max_lag=None, per_batch=1)
    agents = [ring.ask(ASK) for _ in range(GROUP)]
    while not all(one.done for one in agents):
        ring.worker.tick()
    later = [ring.ask([*ASK, *one.token_ids[0], 7]) for one in agents]
    again = ring.ask([*ASK, *agents[0].token_ids[0], 7])  # a retry: its conversation has gone on
    while not all(one.done for one in (*later, again)):
        ring.worker.tick()
    assert len(ring.worker.conversations) == GROUP
    for one in (*later,):
        rewarded(ring, one.call.names.id)
    ring.settle()
    assert counts(ring)["learned"] == 2 * GROUP + 1
    assert len({before + drawn[0] for before, drawn, _ in learned(ring)}) > 1
    ring.close()


def test_of_equal_conversations_without_names_each_gets_its_own_reward() -> None:
    """Two agents have equal answers; one goes on, and the other ends."""
    ring = Ring(max_lag=None, per_batch=1)
    book = ring.worker.conversations
    one, other = (ring.answered(ASK, limit=1) for _ in range(2))
    while one.token_ids != other.token_ids:
        other = ring.answered(ASK, limit=1)
    text = [*ASK, *one.token_ids[0], 7]
    later = [ring.answered(text, limit=1), ring.ask([*text, 1], limit=1)]
    for first in (one, other):  # whichever of them was continued
        rewarded(ring, first.call.names.id, 0.5)
        break
    goes_on = book._ids[later[0].call.names.id]
    assert [len(row.spans) for row in goes_on.rows] == [2] and not goes_on.ended
    assert book._ids[other.call.names.id] is goes_on
    while not later[1].done:
        ring.worker.tick()
    rewarded(ring, later[0].call.names.id, 2.0)
    for _ in range(GROUP - 2):
        rewarded(ring, ring.answered(ASK).call.names.id, 0.0)
    ring.worker.conversations.sweep(1e9)
    ring.settle()
    found = [(len(before), reward) for before, _, reward in learned(ring)]
    assert (len(ASK), 0.5) in found and (len(ASK), 2.0) in found and (len(text), 2.0) in found
    assert (len(text), 0.5) not in found
    ring.close()


def test_a_conversation_with_fewer_samples_is_a_witness_in_the_others_block() -> None:
    ring = Ring(max_lag=None, per_batch=1)
    for number in range(GROUP):
        ring.answered(ASK, conversation=str(number))
        if number == 0:
            ring.answered([*ASK, 8], conversation="0")
        rewarded(ring, str(number), float(number))
    ring.settle()
    _, second = ring.batches
    assert second["mask"][0].all() and second["reward"][0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert second["behaviour"]["chosen"][0].any(1).tolist() == [True, False, False, False]
    ring.close()


def test_tokens_older_than_the_bound_are_given_and_not_learned_from() -> None:
    ring = Ring(max_lag=1, per_batch=1)
    slow = ring.answered(ASK, conversation="slow")
    for _ in range(4):  # four updates, which others bring
        for number in range(GROUP):
            rewarded(ring, ring.answered([4, 5]).call.names.id, float(number))
        ring.settle(3)
    assert ring.weights.version == 4
    ring.answered([*ASK, *slow.token_ids[0], 7], conversation="slow")
    for number in range(GROUP - 1):
        ring.answered(ASK, conversation=str(number))
        rewarded(ring, str(number), 0.0)
    rewarded(ring, "slow", 1.0)
    ring.settle()
    found = counts(ring)
    assert found["old"] == 1 and found["learned"] == 4 * GROUP + GROUP
    assert max(ring.ages) <= 1
    ring.close()


def test_conversations_without_reward_or_group_are_dropped_with_the_reason() -> None:
    ring = Ring(max_lag=None, per_batch=1)
    ring.answered(ASK, conversation="silent")
    ring.worker.conversations.sweep(1e9)
    assert counts(ring)["unrewarded"] == 1
    status, said = refused(lambda: rewarded(ring, "silent"))
    assert status == 409 and "had no reward within 60 s" in said
    rewarded(ring, ring.answered([5]).call.names.id)
    ring.worker.conversations.sweep(1e9)
    assert counts(ring)["alone"] == 1
    for _ in range(2):  # two of four are a group, in time
        rewarded(ring, ring.answered([6]).call.names.id)
    ring.worker.conversations.sweep(1e9)
    ring.settle()
    assert counts(ring)["learned"] == 2 and ring.batches[0]["mask"][0].sum() == 2
    ring.close()


def test_conversations_that_wait_for_their_group_are_bounded() -> None:
    ring = Ring(max_lag=None, per_batch=1, most=5)
    for _ in range(2):
        rewarded(ring, ring.answered([5]).call.names.id)
    for prompt in range(6, 10):  # one more than may wait: those that came first are a group
        rewarded(ring, ring.answered([prompt]).call.names.id)
    ring.settle()
    assert counts(ring)["learned"] == 2 and counts(ring)["alone"] == 0
    for prompt in range(10, 12):
        rewarded(ring, ring.answered([prompt]).call.names.id)
    assert counts(ring)["alone"] == 1
    ring.close()


def test_conversations_that_are_graded_are_bounded() -> None:
    ring = Ring(max_lag=None, per_batch=1, most=2, graded=True)
    for prompt in (5, 6):
        rewarded(ring, ring.answered([prompt]).call.names.id, None)
    failed = ring.answered([7]).failed
    assert failed is not None and failed[0] == 429 and "being graded" in failed[1]
    book = ring.worker.conversations
    book.graded(book.to_grade.popleft(), 1.0, 0.0)
    assert ring.answered([7]).failed is None
    ring.close()


def test_a_refused_call_leaves_no_answer_behind() -> None:
    ring = Ring(calls=1)
    ring.answered(ASK, conversation="talk")
    one = ring.answered([*ASK, 3], samples=2, conversation="talk")
    assert one.failed is not None and one.failed[0] == 429
    status, said = refused(lambda: rewarded(ring, f"{one.call.names.id}:0"))
    assert status == 404, said
    ring.close()


def test_rewards_that_cannot_be_taken() -> None:
    ring = Ring()
    book = ring.worker.conversations
    assert refused(lambda: rewarded(ring, "nobody"))[0] == 404
    running = ring.ask(ASK, conversation="talk")
    ring.worker.tick()
    status, said = refused(lambda: rewarded(ring, "talk"))
    assert status == 409 and "being drawn" in said
    while not running.done:
        ring.worker.tick()
    for value in (math.nan, math.inf, 1e39):
        assert refused(lambda value=value: rewarded(ring, "talk", value))[0] == 400
    assert "the run has no --reward" in refused(lambda: rewarded(ring, "talk", None))[1]
    rewarded(ring, "talk")
    status, said = refused(lambda: rewarded(ring, running.call.names.id))
    assert status == 409 and "has its reward" in said and not len(book)
    ring.close()


def test_an_endless_agent_and_too_many_conversations_are_refused() -> None:
    ring = Ring(calls=2, most=3)
    text = [*ASK]
    for _ in range(2):
        text = [*text, *ring.answered(text, conversation="endless").token_ids[0]]
    failed = ring.answered(text, conversation="endless").failed
    assert failed is not None and failed[0] == 429 and "source.turns" in failed[1]
    for number in range(2):
        assert ring.answered([7, number]).failed is None
    failed = ring.answered([8]).failed
    assert failed is not None and failed[0] == 429 and "source.conversations" in failed[1]
    assert counts(ring)["refused"] == 2 and counts(ring)["calls"] == 4
    several = ring.answered([9], samples=2)
    assert several.failed is not None and len(ring.worker.conversations) == 3
    ring.close()


def test_a_caller_that_leaves_costs_its_answer_and_its_conversation_goes_on() -> None:
    ring = Ring(max_lag=None, per_batch=1)
    one = ring.answered(ASK, conversation="talk")
    text = [*ASK, *one.token_ids[0], 7]
    left = ring.ask(text, conversation="talk")
    ring.worker.tick()
    ring.worker.cancel(left.call)
    assert counts(ring)["left"] == 1 and ring.engine.live == 0
    ring.answered(text, conversation="talk")
    assert counts(ring)["forks"] == 0
    gone = ring.ask([4, 4])  # the only call of a conversation
    ring.worker.tick()
    ring.worker.cancel(gone.call)
    assert len(ring.worker.conversations) == 1 and counts(ring)["left"] == 2
    ring.close()


def test_answers_of_one_call_are_conversations_of_a_group() -> None:
    ring = Ring(max_lag=None, per_batch=1)
    one = ring.answered(ASK, samples=GROUP)
    for number in range(GROUP):
        rewarded(ring, f"{one.call.names.id}:{number}", float(number))
    ring.settle()
    assert counts(ring)["learned"] == GROUP and counts(ring)["conversations"] == GROUP
    assert [reward for _, _, reward in learned(ring)] == [0.0, 1.0, 2.0, 3.0]
    ring.close()


def test_new_conversations_wait_while_the_learner_has_enough_and_others_go_on() -> None:
    ring = Ring(max_lag=1, per_batch=1)
    going = ring.answered([4], conversation="going")
    for _ in range(ring.plan.blocks * GROUP):
        rewarded(ring, ring.answered(ASK).call.names.id)
    waits = ring.ask(ASK)
    ring.answered([4, *going.token_ids[0], 5], conversation="going")
    assert ring.worker.tick() is Tick.STARVED
    begun = [waits.call.begun]
    ring.settle()
    assert [*begun, waits.call.begun] == [False, True] and counts(ring)["old"] == 0
    ring.close()


def test_it_can_be_saved_between_two_tokens_and_a_resume_counts_what_was_open() -> None:
    ring = Ring()
    ring.answered(ASK)
    running = ring.ask(ASK, limit=6)
    ring.worker.tick()
    ring.cut = 1
    assert ring.worker.tick() is ring.worker.ready
    state: dict[str, Any] = {}

    class Kept:
        def put(self, given: Any) -> None:
            state.update(given)

        def state(self) -> Any:
            return state

    ring.worker.save(Kept())  # type: ignore[arg-type]
    while not running.done:
        ring.worker.tick()
    other = Ring()
    other.worker.load(Kept())  # type: ignore[arg-type]
    assert other.ledger.counts()["open"] == 2
    other.ledger.lost("died")
    assert counts(other)["died"] == 2 and counts(other)["open"] == 0
    ring.close()
    other.close()


def test_prompts_of_a_group_share_what_they_begin_with() -> None:
    def row(*tokens: int) -> Row:
        made = Row(None)  # type: ignore[arg-type]  # of no conversation
        made.extend(tokens, Answer([END], [0.0], [0], Stop.EOS))
        return made

    assert shared([row(1, 2, 3, 4), row(1, 2, 3, 5)], 32) == 3
    assert shared([row(1, 2, 3, 4), row(1, 2)], 32) == 2
    assert shared([row(1, 2), row(3, 4)], 32) == 0
    assert shared([row(*range(1, 9)), row(*range(1, 9))], 5) == 5
    text = [3, 1, 4, 1, 5]
    assert list(prefixes(text)) == [hashed(text[:n]) for n in range(6)]
    assert hashed(text[2:], hashed(text[:2])) == hashed(text)


def test_a_group_without_a_common_token_is_dropped_with_the_reason() -> None:
    ring = Ring(max_lag=None, per_batch=1)
    for number in range(GROUP):
        rewarded(ring, ring.answered([number + 1], group="mixed").call.names.id)
    ring.settle()
    assert counts(ring)["long"] == GROUP and not learned(ring)
    ring.close()
