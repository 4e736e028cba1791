"""Which names of tasks and rewards in a file run code that somebody has to vouch for."""

from __future__ import annotations

import pytest

from equipoise import trust


@pytest.mark.parametrize(
    "task",
    [
        "sort",
        "data/train.jsonl",
        "odd:name.parquet",
        "reasoning_gym:chain_sum",
        None,
        "openenv:http://127.0.0.1:8000",
        "openenv:localhost:8000/echo",
    ],
)
@pytest.mark.few(7)
def test_data_and_our_own_names_need_no_word(task: str | None) -> None:
    own = [f"equipoise.language.scoring.{name}" for name in ("own:answered", "reasoning:scored")]
    assert list(trust.of_text(task, own)) == []


@pytest.mark.parametrize(
    "task",
    [
        "mine:make",
        "reasoning_gym.factory:create_dataset",
        "reasoning_gym:a.b",
        "equipoise.language.tasks:make",
    ],
)
@pytest.mark.few(4)
def test_callables_need_one(task: str) -> None:
    names = trust.of_text(task, ["mine:score", "equipoise.language.scoring.own.sys:exit"])
    assert list(names) == [
        ("task", task),
        ("reward", "mine:score"),
        ("reward", "equipoise.language.scoring.own.sys:exit"),
    ]
    with pytest.raises(
        trust.Untrusted,
        match=f"run.json: (module .* of )?task '{task}' (is not there|would be imported from)",
    ):
        trust.check(names, {"task": task}, None, ["mine:score", "equipoise.rewards"], "run.json")


@pytest.mark.parametrize(
    ("task", "kind", "name", "does"),
    [
        ("openenv:https://a.example/x", "URL", "https://a.example/x", "would be connected to"),
        ("openenv:http://[", "URL", "http://[", "would be connected to"),
        ("openenv:127.0.0.1.example.org", "URL", "127.0.0.1.example.org", "would be connected"),
        ("verifiers:me/equipoise-x@1.0", "task", "equipoise_x:taskset", "is not there"),
        ("verifiers:equipoise", "task", "equipoise:taskset", "would be imported from"),
    ],
)
@pytest.mark.few(5)
def test_worlds_elsewhere_and_tasksets_need_one(task: str, kind: str, name: str, does: str) -> None:
    names = trust.of_text(task, [])
    assert list(names) == [(kind, name)]
    with pytest.raises(trust.Untrusted, match=does):
        trust.check(names, {"task": task}, None, [], "run.json")
    trust.check(names, {"task": task}, None, [name], "run.json")


def test_a_file_that_is_held_out_needs_one_and_arguments_are_signed() -> None:
    source = {"task": "data.jsonl"}
    for given in (
        ["held_out=/etc/other.jsonl"],
        [" held_out = /etc/other.jsonl"],
        "size=2,held_out=/etc/other.jsonl",
    ):
        assert ("argument", "/etc/other.jsonl") in trust.of_task(source | {"arguments": given})
    assert (
        list(trust.of_task({"task": "reasoning_gym:chain_sum", "arguments": ["held_out=50"]})) == []
    )
    with pytest.raises(trust.Untrusted, match="argument '/etc/other.jsonl' would be opened"):
        trust.check([("argument", "/etc/other.jsonl")], {}, None, [], "run.json")
    signed = [
        trust.of_program({"source": source | {"arguments": given}})[1]
        for given in ([], ["size=2"], ["size=3"])
    ]
    assert signed[0] != signed[1] != signed[2]


def test_a_reward_of_evaluations_needs_one_as_well() -> None:
    source = {"task": "sort", "model": "tiny", "reward": "run:reward", "gold": "mine:score"}
    assert ("reward", "mine:score") in trust.of_task(source)
    del source["gold"]
    assert ("reward", "mine:score") not in trust.of_task(source)


def test_a_model_is_said_to_be_opened_not_imported() -> None:
    names, signed = trust.of_program({"source": {"task": "sort", "model": "/somewhere/model"}})
    with pytest.raises(trust.Untrusted, match="model '/somewhere/model' would be opened"):
        trust.check(names, signed, None, (), "run.json")
