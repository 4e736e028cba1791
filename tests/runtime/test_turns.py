"""Conversations on the ring: the same bits wherever they run and after a resume, and failures of
partners cost their conversations alone.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.actors.engine.conversing import Conversing
from equipoise.actors.engine.engine import Conversation, Sampled
from equipoise.errors import WorkerFailed, spoken
from equipoise.language.turns import capsules
from equipoise.language.turns.steps import PartnersFailed
from tests.actors.test_history import DROPS
from tests.language.test_tokenizers import words
from tests.language.test_turns import CHAT
from tests.runtime.test_cluster import pids
from tests.runtime.test_text import finished, shown

STEPS = 256
SMALL: dict[str, Any] = {
    "algorithm": "grpo",
    "batch": 64,
    "steps": STEPS,
    "max_lag": 0,
    "evaluate_episodes": 0,
    "tensorboard": False,
    "model": "llama:hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=16",
    "settings": ["optimizer.learning_rate=1e-3", "source.samples_at_once=64"],
}
TALKING = "tests.runtime.talking"


def trained(out: Path, task: str = "guess", **options: Any) -> dict[str, Any]:
    return finished(api.start(task, out=out, **SMALL | options))


def params(summary: dict[str, Any]) -> str:
    return str(summary["params_sha256"])


@pytest.mark.thorough
def test_a_conversation_is_learned_from_and_evaluated(tmp_path: Path) -> None:
    found = trained(tmp_path / "run", on="serial", evaluate_episodes=7, max_lag=1)
    assert found["updates"] == STEPS // 64 and found["episodes"] == STEPS
    assert 1.0 < shown(tmp_path / "run", "completions/turns") <= 3.0
    assert shown(tmp_path / "run", "completions/failed_ratio") == 0.0
    assert shown(tmp_path / "run", "completions/retokenized_turns") < 1.0
    assert shown(tmp_path / "run", "token_mult_prob_error") < 1.001
    info: Any = api.evaluate(tmp_path / "run", episodes=7).info
    assert 1.0 <= info["completions/turns"] <= 3.0 and info["completions/failed_ratio"] == 0.0


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["guess", f"{TALKING}:Adder", f"{TALKING}:Later"])
def test_the_same_bits_wherever_they_run_and_after_a_resume(task: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"task": task, "max_completion_length": 16}
    alone = params(trained(tmp_path / "serial", on="serial", **options))
    assert params(trained(tmp_path / "process", on="process", **options)) == alone
    half = [*SMALL["settings"], f"schedule.schedule_steps={STEPS}"]
    trained(tmp_path / "half", on="serial", steps=STEPS // 2, settings=half, **options)
    assert params(finished(api.start(resume=tmp_path / "half", on="process", steps=STEPS))) == alone


@pytest.mark.thorough
def test_a_generator_that_is_killed_in_a_conversation_is_replaced(tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": 8 * STEPS, "max_completion_length": 16}
    asked = SMALL | options | {"on": "process"}
    run, killed = api.start(f"{TALKING}:Adder", out=tmp_path / "run", **asked), 0
    with run:
        for report in run:
            found = pids("generator 0")
            if report.env_steps >= STEPS and not killed and found:
                os.kill(found[0], signal.SIGKILL)
                killed = found[0]
    assert run.summary is not None and killed and run.summary["status"] == "completed"
    whole = trained(tmp_path / "whole", f"{TALKING}:Adder", on="serial", **options)
    assert params(run.summary) == params(whole)


@pytest.mark.thorough
def test_a_partner_that_fails_is_counted_and_noted(tmp_path: Path) -> None:
    options: dict[str, Any] = {"task": f"{TALKING}:Moody", "max_completion_length": 16}
    found = trained(tmp_path / "run", on="serial", **options)
    failed = shown(tmp_path / "run", "completions/failed_ratio")
    assert 0.05 < failed < 0.5 and failed == shown(tmp_path / "run", "frac_reward_none")
    noted = [one for one in found["notes"] if "a conversation is not learned from" in one]
    assert len(noted) == 1 and "LookupError: no such sum" in noted[0]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["metrics"]["reward"] >= 0.0
    kept = sorted((tmp_path / "run" / "capsules").iterdir())
    assert 1 <= len(kept) <= 20 and all(one.name.startswith("conversation-") for one in kept)
    again = capsules.replay(kept[0])
    assert again.now == again.capsule.error and "no such sum" in again.now


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_a_partner_that_never_answers_ends_the_run_with_its_error(on: Any, tmp_path: Path) -> None:
    with pytest.raises((PartnersFailed, WorkerFailed)) as caught:
        trained(tmp_path / "run", f"{TALKING}:Broken", on=on, max_completion_length=16)
    said = spoken(caught.value)
    assert "failed in 64 conversations" in said and "ConnectionError: no shop there" in said


@pytest.mark.thorough
def test_rewards_and_refills_are_of_the_row_that_was_asked(tmp_path: Path) -> None:
    options: dict[str, Any] = {"task": f"{TALKING}:Telling", "max_completion_length": 16}
    given = [*SMALL["settings"], "algorithm.refills=2", "source.turn_tokens=2"]
    reward = f"{TALKING}:agrees"
    found = trained(tmp_path / "run", on="serial", settings=given, reward=reward, **options)
    assert found["episodes"] == STEPS and shown(tmp_path / "run", "refills") > 0
    # 0.5 by the function, which raises if the row is another one, and 0.25 by the partner
    assert shown(tmp_path / "run", "reward") == 0.75


@pytest.mark.thorough
def test_a_conversation_that_waits_leaves_its_place_to_others(
    tmp_path: Path, monkeypatch: Any
) -> None:
    seen = [0, 0]  # the most samples that are drawn, and that are open
    step = Conversing.step

    def looked(engine: Conversing) -> list[Sampled]:
        done = step(engine)
        seen[0] = max(seen[0], engine.live - engine.away)
        seen[1] = max(seen[1], len(engine._open))
        return done

    monkeypatch.setattr(Conversing, "step", looked)
    given = [*SMALL["settings"][:1], "source.samples_at_once=16", "source.turn_tokens=2"]
    options: dict[str, Any] = {"settings": given, "max_completion_length": 16, "max_lag": 1}
    trained(tmp_path / "run", f"{TALKING}:Adder", on="serial", **options)
    assert seen[0] <= 16 < seen[1], seen


@pytest.mark.thorough
def test_messages_are_told_by_a_chat_template(tmp_path: Path, monkeypatch: Any) -> None:
    trained(tmp_path / "first", on="serial", steps=64)
    model = api.export(tmp_path / "first", tmp_path / "model").path
    words(Path(model), template=CHAT)
    options: dict[str, Any] = {"task": f"{TALKING}:Chatting", "on": "serial", "model": str(model)}
    seen: list[Conversation] = []
    ended = Conversing._ended

    def looked(engine: Conversing, *given: Any) -> Sampled:
        sample = ended(engine, *given)
        if (
            sample.conversation is not None
            and sample.conversation.turns == 3
            and sample.conversation.reward is not None
        ):
            seen.append(sample.conversation)
        return sample

    monkeypatch.setattr(Conversing, "_ended", looked)
    given = [*SMALL["settings"], "source.turn_tokens=4"]
    trained(tmp_path / "run", max_completion_length=32, settings=given, **options)
    assert seen
    for told in seen:
        roles = [one["role"] for one in told.messages]
        assert roles == ["assistant", "user", "assistant", "user", "assistant"]
        assert told.messages[1]["content"] == "b c"
    words(Path(model), template=CHAT.replace("in messages", "in messages[-1:]"))
    with pytest.raises(ValueError, match="must keep earlier turns as they were written"):
        api.start(f"{TALKING}:Chatting", out=tmp_path / "not", **SMALL | {"model": str(model)})


@pytest.mark.thorough
@pytest.mark.parametrize("on", ["serial", "process"])
def test_an_openenv_server_trains_a_model(on: Any, tmp_path: Path) -> None:
    pytest.importorskip("websockets")
    from tests.language.openenv_server import letters, serving

    given = ["source.arguments=rows=6,chat=false,sessions=4", "source.turn_tokens=1"]
    options: dict[str, Any] = {"max_completion_length": 16, "evaluate_episodes": 3, "steps": 1024}
    settings = ["optimizer.learning_rate=1e-2", "source.samples_at_once=64", *given]
    with serving(sessions=4, answer=letters) as server:
        run = trained(tmp_path / "run", server.url, on=on, settings=settings, **options)
        assert server.most <= 4 and server.open <= 4
    assert run["episodes"] == 1024 and shown(tmp_path / "run", "completions/turns") == 2.0
    assert shown(tmp_path / "run", "completions/failed_ratio") == 0.0
    assert shown(tmp_path / "run", "reward") > 1.0  # 0.5 by chance
    with serving(sessions=1) as server, pytest.raises(ValueError, match="sessions at once, got 1"):
        trained(tmp_path / "few", server.url, on=on, settings=settings, **options)


@pytest.mark.thorough
def test_a_history_that_is_rendered_is_learned_from_in_parts(tmp_path: Path) -> None:
    trained(tmp_path / "first", on="serial", steps=64)
    model = api.export(tmp_path / "first", tmp_path / "model").path
    words(Path(model), template=DROPS)
    given = [*SMALL["settings"], "source.turn_tokens=4", "source.history=render"]
    options: dict[str, Any] = {"model": str(model), "settings": given, "max_completion_length": 64}
    task, runs = f"{TALKING}:Chatting", {}
    for on in ("serial", "process"):
        runs[on] = params(trained(tmp_path / on, task, on=on, steps=128, **options))
    assert runs["serial"] == runs["process"]
    assert shown(tmp_path / "serial", "token_mult_prob_error") < 1.001
    assert shown(tmp_path / "serial", "completions/prefixes") > 1.0
    # a resumed run knows from its own settings that the history is rendered
    options["settings"] = [*given, "schedule.schedule_steps=128"]
    trained(tmp_path / "half", task, on="process", steps=64, **options)
    resumed = finished(api.start(resume=tmp_path / "half", on="serial", steps=128))
    assert params(resumed) == runs["serial"]
    assert shown(tmp_path / "half", "completions/prefixes") > 1.0


def test_what_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="must be a task of completions"):
        api.start("guess", out=out, **SMALL | {"algorithm": "sft"})
    with pytest.raises(ValueError, match="unknown function 'rows'"):
        api.start("equipoise.language.turns.own:Guess", out=out, **SMALL)
    given = [*SMALL["settings"], "source.arguments=mots=3"]
    with pytest.raises(ValueError, match="unknown argument 'mots'; did you mean 'most'"):
        api.start(f"{TALKING}:Adder", out=out, **SMALL | {"settings": given})
    assert not out.exists()
