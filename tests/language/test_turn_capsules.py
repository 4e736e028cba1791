"""Capsules of conversations: what is written when a partner fails fails again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from equipoise.language.turns import capsules
from equipoise.language.turns.capsules import TurnsCapsule
from equipoise.trust import Untrusted
from tests.actors.decoders import small_decoder
from tests.actors.test_conversing import LENGTH, TOKENS, engine_of, told

HERE = f"{__name__}:Breaks"


class Breaks:
    """Raises at the second turn, in a way that its row says."""

    healed = False

    def reset(self, row: Mapping[str, object]) -> str:
        self.row, self.turns = row, 0
        return "ab"

    def step(self, text: str) -> Any:
        self.turns += 1
        if self.turns < 2 or Breaks.healed:
            return "<", 0.0
        if self.row.get("how") == "wrong":
            return "<", "much"
        raise LookupError(f"no answer to {len(text)} letters")

    @staticmethod
    def rows() -> list[dict[str, str]]:
        return [{"how": how} for how in ("wrong", "raise")] * 2


def capsule(**given: Any) -> TurnsCapsule:
    about: dict[str, Any] = {
        "partner": HERE,
        "arguments": {},
        "error": "",
        "deadline_s": 30.0,
        "answer_bytes": 100,
        "row": {},
        "prompt": "ab",
        "turns": ["a", "bc"],
    }
    return TurnsCapsule(**about | given)


def test_a_failed_conversation_is_kept_and_fails_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = capsules.keeper(tmp_path, HERE, {"most": 3}, (30.0, 100))
    told(engine_of(small_decoder(words=TOKENS.size, length=LENGTH), Breaks, keep=keep))
    files = sorted(tmp_path.iterdir())
    assert len(files) == 8
    for file in files:
        again = capsules.replay(file)
        assert again.now == again.capsule.error and "LookupError: no answer to" in again.now
        assert len(again.capsule.turns) == 2 and again.capsule.arguments == {"most": 3}
    monkeypatch.setattr(Breaks, "healed", True)
    assert capsules.replay(files[0]).now == ""


def test_a_wrong_answer_is_kept_too(tmp_path: Path) -> None:
    file = capsules.write(tmp_path, capsule(row={"how": "wrong"}, error="other"))
    assert file is not None and capsules.is_one(file)
    assert capsules.replay(file).now == "step: the reward must be a finite number, got 'much'"


def test_a_capsule_from_elsewhere_needs_a_word(tmp_path: Path) -> None:
    file = capsules.write(tmp_path, capsule(error="LookupError"))
    assert file is not None
    data = json.loads(file.read_text())
    file.write_text(json.dumps(data | {"arguments": {"most": 9}}))
    with pytest.raises(Untrusted, match=f"task '{HERE}' would be imported from"):
        capsules.replay(file)
    assert "no answer to 2 letters" in capsules.replay(file, [HERE]).now
    file.write_text(json.dumps({key: data[key] for key in data if key != "turns"}))
    with pytest.raises(ValueError, match="turns"):
        capsules.read(file)


def test_capsules_of_one_partner_have_a_limit(tmp_path: Path) -> None:
    written = [capsules.write(tmp_path, capsule()) for _ in range(22)]
    assert written[19] is not None and written[20] is written[21] is None
    assert len(list(tmp_path.iterdir())) == 20
