"""Scores of a reward model: the same however texts are padded, calibrated, and given to a run."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.language import files, reward_models
from equipoise.language.reward_models import CUT, Calibration, RewardModel, calibrate
from equipoise.language.scoring.functions import Samples, call, load
from equipoise.language.tokenizers import CharTokenizer, HubTokenizer, with_end
from equipoise.nets.packing import packed_texts
from equipoise.nets.scored import ScoredDecoder
from tests.algorithms.pairs import SHAPE, filled
from tests.language.test_messages import CHAT
from tests.language.test_tokenizers import words

LETTERS = CharTokenizer("abcdefgh")


def folder_of(place: Path, tokenizer: Any = LETTERS, **calibration: Any) -> Path:
    net = filled(ScoredDecoder(SHAPE), 1)
    reward_models.write(place, net, tokenizer, Calibration(**calibration))
    return place


def texts_of(end: int) -> list[tuple[list[int], list[int]]]:
    """Ragged texts, with the end also in the midst, as at the end of each turn of a chat."""
    rng = random.Random(0)

    def some(most: int) -> list[int]:
        return [rng.randrange(8) for _ in range(rng.randint(1, most))]

    return [([*some(4), end, *some(3)], [*some(9), end]) for _ in range(7)]


@pytest.mark.few(4)
@pytest.mark.parametrize("side", ["right", "left", "none"])
@pytest.mark.parametrize("pad", ["own", "end"])
def test_a_score_is_that_of_transformers_however_texts_are_padded(
    tmp_path: Path, side: str, pad: str
) -> None:
    transformers = pytest.importorskip("transformers")
    model = RewardModel.read(folder_of(tmp_path / "model"))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    texts = texts_of(LETTERS.eos[0])
    fill = LETTERS.pad if pad == "own" else LETTERS.eos[0]
    whole = [prompt + completion for prompt, completion in texts]
    longest = max(map(len, whole))
    ours = model.raw(texts)
    for number, one in enumerate(whole):
        room = 0 if side == "none" else longest - len(one)
        row = one + [fill] * room if side == "right" else [fill] * room + one
        mask = torch.tensor([1] * len(one) + [0] * room)
        mask = mask if side == "right" else mask.flip(0)
        with torch.no_grad():
            hidden = theirs.model(
                torch.tensor([row]),
                attention_mask=mask[None],
                position_ids=(mask.cumsum(0) - 1).clamp(min=0)[None],
            ).last_hidden_state
        last = len(one) - 1 if side == "right" else len(row) - 1
        score = theirs.score(hidden[0, last]).item()
        assert ours[number].item() == pytest.approx(score, abs=1e-5)


def test_a_score_does_not_depend_on_the_texts_beside_it(tmp_path: Path) -> None:
    model, texts = RewardModel.read(folder_of(tmp_path)), texts_of(LETTERS.eos[0])
    together = model.raw(texts)
    alone = torch.cat([model.raw([one]) for one in texts])
    assert together.tolist() == pytest.approx(alone.tolist(), abs=1e-5)
    shared = packed_texts([(texts[0][0], [completion for _, completion in texts])])
    with torch.no_grad():
        packed = model.net.scores(shared)
    apart = model.raw([(texts[0][0], completion) for _, completion in texts])
    assert packed.tolist() == pytest.approx(apart.tolist(), abs=1e-5)


def test_a_completion_has_one_end(tmp_path: Path) -> None:
    end = LETTERS.eos[0]
    assert with_end(LETTERS, [1, end, 2]) == [1, end, 2, end]
    assert with_end(LETTERS, [1, end, end]) == with_end(LETTERS, [1]) == [1, end]
    model = RewardModel.read(folder_of(tmp_path, center=0.5, scale=2.0))
    (asked, answer), own = model.tokens("ab", "cd"), LETTERS.encode("cd")
    assert (asked, answer) == (LETTERS.encode("ab"), [*own, end])
    raw = model.raw([(asked, answer)])
    samples: dict[str, Any] = {"prompts": ["ab", "ab"], "completions": ["cd", "cd"]}
    given = Samples(**samples, completion_ids=[[*own, end], own], ended=[True, False])
    wanted = [(raw.item() - 0.5) / 2.0, CUT]
    assert call(model, given) == pytest.approx(wanted, abs=1e-5)
    assert eq.score(tmp_path, ["ab"], ["cd"]) == pytest.approx(wanted[:1], abs=1e-5)
    assert eq.score(tmp_path, ["ab"], ["cd"], raw=True) == pytest.approx(raw.tolist(), abs=1e-5)


def test_a_chat_is_scored_with_the_end_as_its_pad(tmp_path: Path) -> None:
    own = HubTokenizer(words(tmp_path / "tokenizer", template=CHAT))
    model = RewardModel.read(folder_of(tmp_path / "model", own))
    chat = [{"role": "user", "content": "a b"}]
    asked, answer = model.tokens(chat, "b c")
    assert own.eos[0] in asked and answer == [*own.encode("b c"), own.eos[0]]
    one = model.raw([(asked, answer)]).item()
    found = eq.score(tmp_path / "model", [chat], ["b c"], raw=True)
    assert found == pytest.approx([one], abs=1e-5)


def test_a_calibration_finds_the_temperature_of_its_labels() -> None:
    rng = torch.Generator().manual_seed(0)
    gap = 4.0 * torch.randn(40_000, generator=rng)
    chosen = gap + 3.0
    label = (torch.rand(len(gap), generator=rng) < torch.sigmoid(gap / 2.5)).float()
    found = calibrate(chosen, torch.full_like(gap, 3.0), label)
    assert found.temperature == pytest.approx(2.5, rel=0.03)
    assert found.center == pytest.approx(3.0, abs=0.05)
    both = torch.cat([chosen, torch.full_like(gap, 3.0)])
    assert found.scale == pytest.approx(float(both.std()), rel=1e-4)
    tied = calibrate(torch.tensor([1.0, 2.0]), torch.zeros(2), torch.tensor([0.5, 1.0]))
    assert tied.accuracy == 0.75 and tied.pairs == 2
    parted = calibrate(torch.ones(3), torch.zeros(3), torch.ones(3))
    assert math.isfinite(parted.temperature) and parted.temperature > 0


def test_another_tokenizer_is_refused_in_one_sentence(tmp_path: Path) -> None:
    folder_of(tmp_path / "model")
    with pytest.raises(ValueError, match="with the tokenizer of the model that learns, got one"):
        eq.train("sort", "grpo", reward=f"run:{tmp_path / 'model'}", out=tmp_path / "run")
    name = f"run:{tmp_path / 'model'}"
    reward_models.check(name, CharTokenizer("abcdefgh"), 64)
    with pytest.raises(ValueError, match="must have positions for 65 tokens"):
        reward_models.check(name, LETTERS, 65)


def test_a_folder_that_is_none_or_damaged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be the folder of a reward model"):
        load(f"run:{tmp_path}")
    file = folder_of(tmp_path) / reward_models.FILE
    said = json.loads(file.read_text())
    said["calibration"]["scale"] = 0
    file.write_text(json.dumps(said))
    with pytest.raises(ValueError, match="calibration.scale"):
        RewardModel.read(tmp_path)
    files.write(tmp_path, SHAPE, {})
    file.write_text(json.dumps(said | {"calibration": said["calibration"] | {"scale": 1}}))
    with pytest.raises(ValueError, match="expected 21 tensors, got all but 21"):
        RewardModel.read(tmp_path)


@pytest.mark.thorough
def test_a_trained_reward_model_is_the_reward_of_a_run(tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = []
    for _ in range(40):
        asked = "".join(rng.choice("012") for _ in range(6))
        rows.append({"prompt": f"{asked}>", "chosen": "0", "rejected": "1"})
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    usual: dict[str, Any] = {"batch": 16, "actors": 1, "max_lag": 0, "on": "serial"}
    settings = {"optimizer.learning_rate": 3e-3, "placement.threads": 1}
    run = tmp_path / "reward"
    eq.train(str(pairs), "reward_model", steps=480, out=run, settings=settings, **usual)
    better, worse = eq.score(run, ["210210>", "210210>"], ["0", "1"])
    assert better > worse
    exported = eq.export(run, tmp_path / "folder").path
    assert eq.score(exported, ["210210>"], ["0"]) == pytest.approx([better], abs=1e-5)
    with pytest.raises(ValueError, match="must be a run whose model writes, got a reward model"):
        eq.generate(run, ["210210>"])
    done = eq.train("sort", "grpo", reward=f"run:{run}", steps=32, out=tmp_path / "run", **usual)
    assert len([*(run / "reward_models").glob(f"*/{reward_models.FILE}")]) == 1
    assert done.summary["evaluation"]["episodes"] == 20
    # the task's own reward evaluates, and is never learned from
    info = done.summary["evaluation"]["info"]
    assert info["gold"] == done.summary["evaluation"]["mean"] >= 0 > info["proxy"]
    untold = eq.train(
        "sort", "grpo", reward=f"run:{run}", steps=32, out=tmp_path / "other", gold="none", **usual
    )
    assert untold.summary["params_sha256"] == done.summary["params_sha256"]
    assert untold.summary["evaluation"]["mean"] == info["proxy"]


@pytest.mark.parametrize(
    ("prompts", "completions", "said"),
    [
        (["ab"], [1], "completion 1: must be a text, got int"),
        (["ab"], [None], "completion 1: must be a text, got NoneType"),
        (None, ["a"], "must be lists, got NoneType"),
        ({"ab"}, ["a"], "must be lists, got set"),
        (["ab"], (one for one in "a"), "must be lists, got generator"),
    ],
)
def test_odd_texts_to_score_are_refused_in_one_sentence(
    tmp_path: Path, prompts: Any, completions: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        eq.score(folder_of(tmp_path), prompts, completions)
