"""Text over machines that are processes: the bits of one machine, and what becomes of a generator
whose machine is lost.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise import api, files
from equipoise.plans.blueprint import Blueprint
from equipoise.plans.plan import plan_run
from equipoise.record import checkpoint
from equipoise.runtime.messages import Cut, Note
from equipoise.sources import prompts
from equipoise.workers.generator import DifferentPrompts
from tests.runtime import losing
from tests.runtime.machines import ONE_MACHINE, Processes, blue_of, finish, on_machines
from tests.runtime.test_text import STEPS

TEXT: dict[str, Any] = {
    "actors": 3,
    "envs_per_actor": 8,
    "unroll": 1,
    "batch": 64,
    "steps": STEPS,
    "recipe": True,
    "settings": ["optimizer.learning_rate=1e-3", "source.samples_at_once=16"],  # below a share
}
AWAY = {"site 0": ["generator 1"], "site 1": ["generator 2"]}


def blue(folder: Path, **options: Any) -> Blueprint:
    return blue_of(folder, "sort", "grpo", **TEXT | options)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return finish(ONE_MACHINE["process"](blue(tmp_path_factory.mktemp("alone"))))[0]


@pytest.mark.thorough
def test_three_machines_write_what_one_does(alone: Any, tmp_path: Path) -> None:
    there, stats = finish(on_machines(blue(tmp_path), AWAY))
    assert there == alone
    assert (
        stats.rows["inserted"] == stats.rows["sampled"] + stats.rows["held"]
        and stats.rows["dropped"] == 0
    )


@pytest.mark.thorough
@pytest.mark.parametrize("max_lag", [0, 2])
def test_a_generator_s_machine_that_is_killed_is_replaced(
    max_lag: int, alone: Any, tmp_path: Path
) -> None:
    """In lockstep to the end. With lag the other generators go on: until the replacement has done
    something.
    """
    nodes, before, notes = Processes(), list[int](), list[str]()
    runtime = on_machines(
        blue(tmp_path, max_lag=max_lag, steps=1000 * STEPS if max_lag else STEPS), AWAY, nodes
    )

    def each(messages: Any) -> None:
        notes.extend(message.text for message in messages if isinstance(message, Note))
        if not before and runtime.stats().version >= 4 and runtime.stats().ticks[2] > 0:
            before.append(runtime.stats().ticks[2])
            nodes.kill("site 1")

    def at_work() -> bool:
        now = runtime.stats()
        return max_lag > 0 and now.sites["site 1"].lost == 1 and now.ticks[2] > before[0]

    there, stats = finish(runtime, each, at_work)
    assert stats.sites["site 1"].lost == 1, notes
    assert (
        stats.rows["inserted"] == stats.rows["sampled"] + stats.rows["dropped"] + stats.rows["held"]
    )
    assert max_lag or there == alone


@pytest.mark.thorough
def test_a_generator_s_machine_that_is_drained_hands_its_work_over(
    alone: Any, tmp_path: Path
) -> None:
    nodes, seen = Processes(), list[int]()
    runtime = on_machines(blue(tmp_path), AWAY, nodes)

    def each(messages: Any) -> None:
        if not seen and runtime.stats().version >= 4:
            seen.append(1)
            nodes.drained.add("site 1")

    there, stats = finish(runtime, each)
    assert (stats.sites["site 1"].moved, stats.sites["site 1"].lost, stats.rows["dropped"]) == (
        1,
        0,
        0,
    )
    assert there == alone


@pytest.mark.thorough
def test_a_machine_killed_and_one_drained_make_no_learner_wait(tmp_path: Path) -> None:
    nodes = Processes()
    runtime = on_machines(losing.endless(tmp_path), losing.SITES, nodes)
    losing.check(*losing.loses(runtime, nodes.kill, nodes.drained.add))


APART = {"site 0": ["learner 1", "generator 1"], "site 1": ["scorer 0"]}


def two(folder: Path, shard: str, **options: Any) -> Blueprint:
    """Two learners, a generator each, and a scorer."""
    settings = [*TEXT["settings"], "source.scorers=1", f"placement.shard={shard}"]
    return blue(folder, **{"actors": 2, "learners": 2, "settings": settings} | options)


@pytest.mark.thorough
@pytest.mark.parametrize("shard", ["none", "fsdp"])
def test_two_learners_on_two_machines_have_the_bits_of_one_machine(
    shard: str, tmp_path: Path
) -> None:
    """Also after a resume from a checkpoint that they made there."""
    wanted, _ = finish(ONE_MACHINE["process"](two(tmp_path / "near", shard)))
    made = two(tmp_path / "far", shard, checkpoint_every=STEPS // 2)
    runtime = on_machines(made, APART)
    cuts: list[Cut] = []

    def each(messages: Any) -> None:
        for message in messages:
            if isinstance(message, Cut) and not cuts:
                assert message.error is None, message.error
                meta = files.json_bytes({"version": message.version, "env_steps": message.step})
                whole = message.files | checkpoint.add(
                    checkpoint.aside(tmp_path / "far", message.step), checkpoint.META, meta
                )
                checkpoint.complete(tmp_path / "far", message.step, whole)
                cuts.append(message)

    there, stats = finish(runtime, each)
    assert there == wanted and stats.rows["dropped"] == 0 and cuts
    source = checkpoint.choose(tmp_path / "far", skipped=[])
    assert source is not None and 0 < source.version < stats.version
    again = replace(two(tmp_path / "again", shard), resume=source)
    assert finish(on_machines(again, APART))[0] == wanted


def test_a_generator_that_reads_other_prompts_than_the_run_began_with_ends_it(
    tmp_path: Path,
) -> None:
    """As on a machine whose file of the task is another."""
    file = tmp_path / "some.jsonl"
    file.write_text(
        "".join(
            f'{{"prompt": "{one}>", "completion": "{one}"}}\n'
            for one in ("012", "120", "201", "110")
        )
    )
    made = api.program(
        str(file),
        "sft",
        model=str(model(tmp_path)),
        batch=8,
        envs_per_actor=8,
        steps=64,
        evaluate_episodes=0,
    )
    there = plan_run(made)
    file.write_text(file.read_text().replace("012", "021"))
    prompts._read.cache_clear()
    with pytest.raises(
        DifferentPrompts, match="expected the prompts that the run began with, got others"
    ):
        finish(ONE_MACHINE["serial"](there))


def model(folder: Path) -> Path:
    """A model with a tokenizer, in files."""
    run = api.start(
        "sort",
        algorithm="grpo",
        steps=64,
        batch=64,
        on="serial",
        out=folder / "model run",
        tensorboard=False,
        evaluate_episodes=0,
    )
    for _ in run:
        pass
    return api.export(folder / "model run", folder / "model").path
