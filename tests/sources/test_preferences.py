"""Preferences on the ring: pairs stay together, what does not fit is counted, and the reference is
asked once.
"""

from __future__ import annotations

import gc
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.algorithms.dpo import DPO
from equipoise.nets.decoder import Decoder
from equipoise.nets.packing import packed_texts
from equipoise.nets.token_logp import token_logp
from equipoise.sources import preferences, references
from equipoise.sources.preferences import Preferences
from equipoise.types import Policy, Program, Schedule, TaskSource

SHAPE = "llama:hidden_size=16,num_hidden_layers=1,num_attention_heads=2,max_position_embeddings=24"


def file_of(folder: Path, count: int = 24, **more: Any) -> Path:
    rng = random.Random(0)
    rows = []
    for number in range(count):
        asked = "".join(rng.choice("abc") for _ in range(rng.randint(1, 5)))
        one = asked.upper() * rng.randint(1, 2)
        rows.append({"prompt": f"{asked}{number}=", "chosen": one, "rejected": f"{one}!"} | more)
    path = folder / "pairs.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def program(path: Path, given: DPO | None = None, **source: Any) -> Program:
    algorithm: Any = given or DPO()
    return Program(
        source=TaskSource(task=str(path), model=SHAPE, **source),
        policies={"main": Policy(algorithm=algorithm, unroll=1, batch=8)},
    )


def trained(path: Path, out: Path, **options: Any) -> Any:
    given: dict[str, Any] = {
        "algorithm": "dpo",
        "model": SHAPE,
        "batch": 8,
        "steps": 64,
        "actors": 1,
        "max_lag": 0,
        "on": "serial",
        "evaluate_episodes": 2,
        "settings": {"optimizer.learning_rate": 1e-3, "placement.threads": 1},
    }
    return eq.train(str(path), out=out, **(given | options))


def test_ties_alone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must have pairs of which one completion is better"):
        Preferences(program(file_of(tmp_path, tie=True))).text()


def test_both_completions_of_a_pair_are_recited_with_the_reference(tmp_path: Path) -> None:
    source = Preferences(program(file_of(tmp_path)))
    text = source.text()
    engine = source.reciter(text)
    order = text.order(0)
    torch.manual_seed(0)
    for group in range(3):
        number = order(group, 0)
        engine.submit(group, text.train.token(number), 2, limit=text.spec.completion)
        first, second = engine.step()
        example = text.train.examples[number]
        wanted = [example.completion, example.columns["rejected"]]
        assert [text.tokenizer.decode(one.token.tolist()) for one in (first, second)] == wanted
        assert all(one.token[-1] == text.spec.eos[0] for one in (first, second))
        net = reference_of(source)
        data = packed_texts([(text.train.token(number), text.train.given[number].tokens)])
        logp, _ = token_logp(net, data)
        both = np.concatenate([first.logp, second.logp])
        assert logp[data.chosen].tolist() == pytest.approx(both.tolist(), abs=1e-5)


def reference_of(source: Preferences) -> Decoder:
    from equipoise.plans.roles import network

    spec = source.spec(None)
    net = network(source.program, spec, "main")
    assert isinstance(net, Decoder)
    return net.requires_grad_(False)


def test_rows_that_do_not_fit_are_counted_and_never_cut(tmp_path: Path) -> None:
    path = file_of(tmp_path, 8)
    with path.open("a") as file:
        file.write(json.dumps({"prompt": "a", "chosen": "b" * 30, "rejected": "c"}) + "\n")
    text = Preferences(program(path)).text()
    assert len(text.train) + len(text.held_out) == 8
    (note,) = text.spec.notes
    assert "1 of 8 rows" in note and "line 9 of 31 tokens" in note
    short = Preferences(program(path, completion_tokens=4)).text()
    kept = [*short.train.given, *short.held_out.given]
    assert len(kept) < 8 and all(len(one) <= 4 for given in kept for one in given.tokens)
    with pytest.raises(ValueError, match="must have rows that fit into the model's 24 positions"):
        Preferences(program(path, completion_tokens=1)).text()


def test_equal_tokens_and_other_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="source.task: must be a file of pairs"):
        eq.train("sort", "dpo", out=tmp_path / "run")
    with pytest.raises(ValueError, match="source.reward: must be empty with DPO"):
        eq.train(str(file_of(tmp_path)), "dpo", reward="a:b", out=tmp_path / "run")
    rows = tmp_path / "labels.jsonl"
    rows.write_text(
        "".join(f'{{"prompt": "{n}", "completion": "a", "label": true}}\n' for n in range(4))
    )
    with pytest.raises(ValueError, match="algorithm.loss_type=kto learns from"):
        Preferences(program(rows)).text()
    assert Preferences(program(rows, DPO(loss_type="kto"))).text().train.given[0].value == [1, 0]


def test_kto_pairs_each_row_with_a_completion_of_another_prompt(tmp_path: Path) -> None:
    text = Preferences(program(file_of(tmp_path), DPO(loss_type="kto"))).text()
    own = {tuple(prompt): set[tuple[int, ...]]() for prompt in text.train.tokens}
    for prompt, given in zip(text.train.tokens, text.train.given, strict=True):
        own[tuple(prompt)].add(tuple(given.tokens[0]))
    for prompt, given in zip(text.train.tokens, text.train.given, strict=True):
        others = [some for asked, some in own.items() if asked != tuple(prompt)]
        assert any(tuple(given.tokens[1]) in some for some in others)


@pytest.mark.thorough
def test_a_second_run_reads_the_reference_and_another_model_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(tmp_path)
    first = trained(path, tmp_path / "one")
    (kept,) = tmp_path.glob("pairs.reference-*.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr(references, "_computed", None)  # it would be called
        second = trained(path, tmp_path / "two")
    assert second.summary["params_sha256"] == first.summary["params_sha256"]
    other = replace(program(path), schedule=Schedule(seed=1))
    assert references.where(other, Preferences(other).text()) != kept
    kept.write_bytes(kept.read_bytes()[:-8])
    with pytest.raises(ValueError, match="delete it, and it is computed again"):
        trained(path, tmp_path / "three")


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", ["dpo", "reward_model"])
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, algorithm: str) -> None:
    path = file_of(tmp_path)
    whole = trained(path, tmp_path / "whole", algorithm=algorithm)
    half = {"steps": 32, "settings": {"optimizer.learning_rate": 1e-3, "placement.threads": 1}}
    trained(path, tmp_path / "half", algorithm=algorithm, **half)
    done = eq.resume(tmp_path / "half", steps=64)
    assert done.summary["params_sha256"] == whole.summary["params_sha256"]


@pytest.mark.thorough
def test_a_planted_order_of_tokens_is_learned(tmp_path: Path) -> None:
    done = trained(file_of(tmp_path, 40), tmp_path / "run", algorithm="reward_model", steps=400)
    assert done.summary["evaluation"]["mean"] > 0.9


def test_no_reference_is_left_in_memory(tmp_path: Path) -> None:
    source, before = Preferences(program(file_of(tmp_path))), decoders()
    source.references(source.text())
    gc.collect()
    assert not [one for one in decoders() if not any(one is other for other in before)]


def decoders() -> list[Decoder]:
    """All decoders of this process, other tests' too."""
    return [one for one in gc.get_objects() if type(one) is Decoder]


def test_the_pairs_of_an_evaluation_are_scored_by_their_own_reference(tmp_path: Path) -> None:
    source = Preferences(program(file_of(tmp_path)))
    text, net = source.text(), reference_of(source)
    logp = source.references(text)
    assert logp is not None
    # the policy is its own reference: every implicit reward is 0
    score = preferences.scored(source.algorithm, net, text.held_out, [0, 1], logp.held_out)
    assert score.tolist() == pytest.approx([0.0] * 4, abs=1e-5)
