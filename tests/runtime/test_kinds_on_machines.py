"""A kind of worker that no other file knows (``ledger.py``) works on another machine, and is saved
and replaced with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise.plans.blueprint import Blueprint
from equipoise.record import statefile
from equipoise.record.checkpoint import aside
from equipoise.runtime.cluster.placing import cells
from equipoise.runtime.cluster.remote_crew import RemoteCrew
from equipoise.runtime.messages import Cut
from equipoise.workers.kind import crew
from equipoise.workers.kinds import KINDS
from tests.runtime.ledger import Ledger
from tests.runtime.machines import Processes, blue_of, finish, run_by

pytestmark = pytest.mark.timeout(300)
WITH = (*KINDS, Ledger())
LEDGERS = ("ledger 0", "ledger 1")


def blue_with(folder: Path, **options: Any) -> Blueprint:
    return blue_of(
        folder,
        "CartPole-v1",
        "ppo",
        settings=["algorithm.epochs=1", "algorithm.hidden=[16]"],
        **options,
    )


def test_workers_of_such_a_kind_share_a_cell(tmp_path: Path) -> None:
    blue = blue_with(tmp_path)
    found = cells(blue, crew(blue, WITH))
    assert [cell.titles for cell in found] == [
        *((f"actor {number}",) for number in range(4)),
        LEDGERS,
    ]
    assert (found[-1].actors, found[-1].cores) == (0, 2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sites",
    [{"site 0": LEDGERS}, {"site 0": ("actor 3", *LEDGERS)}],
    ids=["alone", "beside an actor"],
)
def test_it_is_saved_in_cuts_and_replaced_with_its_machine(tmp_path: Path, sites: Any) -> None:
    blue = blue_with(tmp_path, max_lag=1, steps=640_000, checkpoint_every=640)
    nodes, cuts, logs = Processes(), list[Cut](), list[list[int]]()
    runtime = run_by(RemoteCrew(blue, nodes, sites, WITH))
    killed = list[int]()

    def each(messages: Any) -> None:
        for cut in (message for message in messages if isinstance(message, Cut)):
            cuts.append(cut)
            if cut.error is None:
                files = [
                    aside(tmp_path, cut.step) / f"ledger_{index}.safetensors" for index in (0, 1)
                ]
                logs.append(statefile.parse(files[0].read_bytes())["log"].tolist())
                assert all(file.name in cut.files for file in files)
        if not killed and len(logs) >= 2 and logs[-1]:
            killed.append(len(logs))
            nodes.kill("site 0")
        runtime.done |= (
            bool(killed) and len(logs) > killed[0] + 1 and logs[-1][-1:] > logs[killed[0] - 1][-1:]
        )

    _, last = finish(runtime, each)
    assert last.sites["site 0"].lost == 1
    before, after = logs[killed[0] - 1], logs[-1]
    assert before == sorted(set(before)) and after == sorted(set(after)), (
        "each version is noted once"
    )
    assert after[-1] > before[-1] and after[: len(before)] != before, "a successor begins a new log"
