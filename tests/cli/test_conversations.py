"""``equipoise generate --conversations``, and ``eq.converse``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from equipoise import api
from equipoise.language.turns import own
from tests.actors.test_history import DROPS
from tests.cli.test_looking import out, refused
from tests.language.test_tokenizers import words
from tests.runtime import talking
from tests.runtime.test_turns import SMALL, TALKING, trained

pytestmark = pytest.mark.thorough


def made(place: Path, task: str, **options: Any) -> Path:
    trained(place, task, **{"on": "serial", "steps": 64, "max_lag": 1} | options)
    return place


@pytest.fixture(scope="module")
def guess(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("guess") / "run", "guess")


@pytest.fixture(scope="module")
def adder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("adder") / "run"
    given = [*SMALL["settings"], "source.turn_tokens=2"]
    return made(place, f"{TALKING}:Adder", max_completion_length=16, settings=given)


def hint(word: str, number: str) -> str:
    return own.UNKNOWN if word not in own.NUMBERS else "<" if number < word else ">"


def test_conversations_are_played_to_their_end(guess: Path) -> None:
    several = api.converse(guess, 9, samples=2, seed=1)
    assert len(several) == 18
    for one in several:
        said = [str(turn["content"]) for turn in one.messages]
        roles = [turn["role"] for turn in one.messages]
        assert one.prompt == own.UNKNOWN and not one.failure
        assert roles == (["assistant", "user"] * own.GUESSES)[: 2 * one.turns - 1]
        told = zip(said[::2], said[1::2], strict=False)
        numbers = [number for number in own.NUMBERS if all(hint(w, number) == h for w, h in told)]
        assert numbers and one.reward == one.rewards["partner"] == float(one.ended)
        assert said[-1] in numbers if one.ended else one.turns == own.GUESSES
    assert several == api.converse(guess, 9, samples=2, seed=1)
    assert several != api.converse(guess, 9, samples=2, seed=2)
    greedy = api.converse(guess, 7, samples=2, greedy=True)
    assert greedy[::2] == greedy[1::2]
    assert all(one.tokens == 1 and not one.ended for one in api.converse(guess, 3, limit=1))


def test_a_conversation_is_about_the_row_of_its_prompt(
    adder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talking.Adder, "step", talking.Telling.step)  # which names the row
    several = api.converse(adder, 5, samples=2)
    prompts = [str(one.prompt) for one in several]
    assert len({*prompts}) == 2 and prompts[::2] == prompts[1::2]  # all held-out rows, twice each
    for one, prompt in zip(several, prompts, strict=True):
        a, b = prompt.strip("=").split("+")
        assert one.messages[1]["content"] == f"[{int(a) + int(b)}]" and one.reward == 0.25


def test_the_turns_are_printed_by_role_and_as_json(guess: Path) -> None:
    lines = out("generate", str(guess), "--conversations", "3").splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert [line.split(":")[0] for line in heads] == [f"conversation {i} of 3" for i in (1, 2, 3)]
    assert all("reward" in line and "turn" in line for line in heads)
    roles = {line.strip().split(":")[0] for line in lines if line not in heads}
    assert roles <= {"prompt", "assistant", "user"} and {"prompt", "assistant"} <= roles
    printed = out("generate", str(guess), "--conversations", "3", "--json").splitlines()
    for line, played in zip(printed, api.converse(guess, 3), strict=True):
        one = json.loads(line)
        assert one["reward"] == played.reward and one["messages"] == [*played.messages]
    (answer,) = out("generate", str(guess), "--prompt", own.UNKNOWN, "--json").splitlines()
    assert json.loads(answer)["prompt"] == own.UNKNOWN


def test_a_partner_that_fails_costs_its_own_conversation(
    adder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, asked = api.converse(adder, 12, seed=3), 0
    step = talking.Adder.step

    def moody(self: talking.Adder, text: str) -> object:
        if self._turns == 1:
            raise LookupError("no such\x1b[2J sum")
        return step(self, text)

    monkeypatch.setattr(talking.Adder, "step", moody)
    for one, before in zip(api.converse(adder, 12, seed=3), whole, strict=True):
        asked += before.turns > 1
        if before.turns == 1:
            assert one == before
        else:
            assert one.reward is None and "LookupError: no such" in one.failure
    assert asked
    shown = out("generate", str(adder), "--conversations", "12", "--seed", "3")
    assert shown.count(r"failed: LookupError: no such\x1b[2J sum") == asked and "\x1b" not in shown
    monkeypatch.setattr(talking.Adder, "step", talking.Broken.step)
    said = refused("generate", str(adder), "--conversations", "80")
    assert "failed in 64 conversations without a success" in said and "no shop there" in said


def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    run = made(tmp_path / "run", f"{TALKING}:Hostile", max_completion_length=40)
    lines = out("generate", str(run), "--conversations", "2").splitlines()
    assert all(one.isprintable() for one in lines)
    assert any(r"prompt: \x1b]0;x\x07" in one and r"\u202e" in one for one in lines)
    # a line of an answer is further in than a role
    assert "    assistant: 7\\x1b]" in lines and r"  user: \rno" in lines


def test_messages_and_a_rendered_history(tmp_path: Path) -> None:
    model = api.export(made(tmp_path / "first", "guess"), tmp_path / "model").path
    words(Path(model), template=DROPS)
    given = [*SMALL["settings"], "source.turn_tokens=4", "source.history=render"]
    run = made(
        tmp_path / "run",
        f"{TALKING}:Chatting",
        model=str(model),
        settings=given,
        max_completion_length=64,
    )
    model.rename(tmp_path / "gone")  # the run's own files are enough
    for one in api.converse(run, 4):
        roles = [str(turn["role"]) for turn in one.messages]
        assert roles == ["assistant", "user", "assistant", "user", "assistant"]
        assert not isinstance(one.prompt, str) and one.reward in (0.0, 1.0) and one.turns == 3
    lines = out("generate", str(run), "--conversations", "1").splitlines()
    assert [one.strip().split(":")[0] for one in lines[1:3]] == ["user", "assistant"]


def test_what_is_refused(guess: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(run: Path, *more: str) -> str:
        return " ".join(refused("generate", str(run), *more).split())

    assert "one of --prompt and --conversations, got none" in said(guess)
    assert "got both" in said(guess, "--prompt", "?", "--conversations", "1")
    for wrong in ("0", "-3", "x", "1e9"):
        assert "conversations" in said(guess, "--conversations", wrong)
    assert "at most 10,000" in said(guess, "--conversations", "5000", "--samples", "3")
    assert "limit: must be at most" in said(guess, "--conversations", "1", "--max-tokens", "999999")
    sort = made(tmp_path / "sort", "sort")
    assert "must be a run whose task has a partner" in said(sort, "--conversations", "1")
    with pytest.raises(ValueError, match="conversations"):
        api.converse(guess, True)

    (tmp_path / "shops.py").write_text("from tests.runtime.talking import Adder as Shop\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    shop = made(tmp_path / "shop", "shops:Shop", max_completion_length=16)
    assert len(api.converse(shop, 2)) == 2
    # of another user, who did not name the partner
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    assert "--trust shops:Shop" in said(shop, "--conversations", "1")
    # only its prompts are asked, which imports nothing
    assert out("generate", str(shop), "--prompt", "1+1=")
    (tmp_path / "shops.py").unlink()
    monkeypatch.delitem(sys.modules, "shops")
    missing = said(shop, "--conversations", "1", "--trust", "shops")
    assert "shops" in missing and missing.count("equipoise generate:") == 1
    assert len(missing) < 400
