"""What a run says of the data set that it learns from, and whether it is still the one that it began with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise.plans.blueprint import Blueprint
from equipoise.record import checkpoint
from equipoise.sources import text as texts
from equipoise.types import Program, TextSpec, learning


def described(blue: Blueprint) -> dict[str, Any]:
    """What ``run.json`` says of the data set or the task, and of the checkpoint that the run begins with."""
    dataset, env = blue.dataset, blue.spec.env
    parent = {} if blue.weights is None else {"parent": checkpoint.identity(Path(blue.weights))}
    if isinstance(env, TextSpec):
        return parent | {"task": {"sha256": env.sha256}}
    if dataset is None:
        return parent
    facts = {"path": str(dataset.path), "episodes": dataset.episodes, "steps": dataset.steps, "sha256": dataset.sha256()}
    return parent | {"dataset": {"name": dataset.name} | facts}


def judged(program: Program) -> tuple[Program, list[str]]:
    """The program, and notes on it. It has no evaluations if no reward can judge them and its algorithm needs none."""
    if not texts.unjudged(program):
        return program, []
    said = f"no evaluations: {program.name} has no reward of its own; --reward module:function judges held-out prompts"
    return replace(program, evaluation=replace(program.evaluation, episodes=0)), [said]


def doubts(program: Program, blue: Blueprint) -> list[str]:
    """Notes on a task, and warnings of what is odd about learning from a data set in this way, though it can be done."""
    dataset, env = blue.dataset, blue.spec.env
    if dataset is None:
        return [*env.notes] if isinstance(env, TextSpec) else []
    found = []
    alone = program.actors == 0
    played = program.source.env is not None and not program.evaluation.episodes
    if alone and played and dataset.env and _id(dataset.env) != _id(program.name):
        found.append(
            f"warning: {dataset.name} is of {dataset.env}, not of {program.name}, which is never made: "
            "there are neither actors nor evaluations"
        )
    for policy in learning(program).values():
        assert policy.replay is not None
        items = policy.batch if alone else policy.replay.recorded(policy.batch)
        if items > dataset.steps:
            found.append(
                f"warning: batch: {items:,} items of a batch are of {dataset.name}, which has {dataset.steps:,} "
                "rows: each comes again and again in one batch"
            )
    return found


def _id(target: str) -> str:
    """Without what says where it is found."""
    return target.rpartition(":")[2]


def check_same(run: Mapping[str, Any], blue: Blueprint) -> None:
    """ValueError where a run would go on with other rows, or prompts: a checkpoint counts on those that it was saved with."""
    dataset, env = blue.dataset, blue.spec.env
    if isinstance(env, TextSpec) and env.sha256 != (began := run["task"]["sha256"]):
        raise ValueError(
            f"source.task: expected the prompts that the run began with (sha256 {began[:12]}...), got others "
            f"({env.sha256[:12]}...)"
        )
    if dataset is not None and (got := dataset.sha256()) != (wanted := run["dataset"]["sha256"]):
        raise ValueError(
            f"{dataset.name}: expected the rows that the run began with (sha256 {wanted[:12]}...), got others "
            f"({got[:12]}...) in {dataset.path}"
        )
