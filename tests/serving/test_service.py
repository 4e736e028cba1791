"""The service without a transport: batches, episodes, versions, shadows, the shield."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import edge
from equipoise.registry import Registry, records
from equipoise.serving import messages
from equipoise.serving.messages import Act, Decision, Outcome, Refused
from equipoise.serving.service import Service
from equipoise.serving.sessions import Sessions
from equipoise.serving.settings import Rules
from equipoise.serving.store import Store
from equipoise.serving.trial import Trial
from equipoise.serving.versions import Loaded, Versions
from tests.serving.servers import OBS, registry

TRIAL = Trial()  # of all tests: what passed once is not tried again


class Served:
    """A service in this loop, and ways to ask it."""

    def __init__(
        self,
        made: Registry,
        policy: str,
        store: Store | None = None,
        rules: Rules | None = None,
        **more: Any,
    ) -> None:
        self.versions = Versions(
            made, policy, rules or Rules(), batch=more.get("batch", 64), trial=TRIAL
        )
        self.versions.start()
        self.sessions = Sessions(
            more.pop("timeout_s", 60.0), more.pop("cap", 10_000), more.pop("clock", lambda: 0.0)
        )
        self.service = Service(self.versions, store or Store(None), self.sessions, seed=3, **more)

    def ask(self, obs: Any = OBS, **given: Any) -> asyncio.Future[Decision]:
        answer = asyncio.get_running_loop().create_future()
        self.service.act(Act(obs, **given), lambda decisions: answer.set_result(decisions[0]))
        return answer

    def swap(self, **aliases: Any) -> None:
        """As the thread that follows the registry does."""
        self.versions.now = Loaded(self.versions._load({**self.aliases, **aliases}))

    @property
    def aliases(self) -> dict[str, str]:
        return {alias: one.digest for alias, one in self.versions.now.by_alias.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return registry(tmp_path_factory.mktemp("registry"), mlp=2, lstm=2, mask=1, box=1)


def versions_of(made: Registry, policy: str) -> list[str]:
    """In the order of their seeds."""
    return list(made.versions(policy))[::-1]


def observations(count: int, steps: int) -> Any:
    return np.random.default_rng(5).normal(size=(count, steps, 4)).astype(np.float32)


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("inline", [True, False])
def test_interleaved_episodes_are_those_played_alone(
    made: Registry, count: int, inline: bool
) -> None:
    """At random in one turn of the loop, also several rows of an episode at once, with episodes
    that end and begin again.
    """
    steps, rng = 8, np.random.default_rng(0)
    obs = observations(count, steps)

    async def play() -> list[list[Decision]]:
        served = Served(made, "lstm")
        served.versions.now.champion.inline = inline
        order = rng.permutation(np.repeat(np.arange(count), steps))
        step = np.zeros(count, int)
        answers: list[list[asyncio.Future[Decision]]] = [[] for _ in range(count)]
        for i, number in enumerate(order):
            t = step[number]
            again = number % 3 == 0 and t == steps // 2  # the caller begins anew
            answers[number].append(
                served.ask(
                    obs[number, t],
                    session=str(number),
                    first=bool(t == 0 or again),
                    done=bool(t == steps - 1),
                )
            )
            step[number] += 1
            if i % 37 == 0:
                await asyncio.sleep(0)
        played = [list(await asyncio.gather(*mine)) for mine in answers]
        assert len(served.sessions) == 0
        assert served.versions.now.champion.episodes == 0
        assert (
            len(served.versions.now.champion.states._free)
            == served.versions.now.champion.states._slots
        )
        served.service.batcher.close()
        return played

    played = asyncio.run(play())
    policy = edge.EdgePolicy(made.resolve("lstm")[1])
    for number in range(count):
        for t in range(steps):
            again = t == 0 or (number % 3 == 0 and t == steps // 2)
            alone = policy.act(obs[number, t], session=str(number), first=again)
            assert played[number][t].action == alone, (number, t)
    assert len({d.action for mine in played for d in mine}) > 1


def test_an_episode_keeps_its_version_and_its_answers(made: Registry) -> None:
    a, b = versions_of(made, "lstm")

    async def play() -> None:
        served = Served(made, "lstm")
        one = [await served.ask(session="one", first=True)]
        served.swap(champion=b)
        two = [await served.ask(session="two", first=True)]
        for _ in range(3):
            one.append(await served.ask(session="one"))
            two.append(await served.ask(session="two"))
        assert {d.version for d in one} == {a} and {d.version for d in two} == {b}
        assert (await served.ask(session="one", first=True)).version == b
        policies = [edge.EdgePolicy(made.resolve("lstm", version)[1]) for version in (a, b)]
        for policy, played in zip(policies, (one, two), strict=True):
            assert [policy.act(OBS) for _ in range(4)] == [d.action for d in played]
        assert (await served.ask(session="one", version="champion")).version == b
        with pytest.raises(Refused, match="with which the episode of 'one' began"):
            served.ask(session="one", version=a[:12])

    asyncio.run(play())


def test_a_batch_mixes_neither_versions_nor_rows_of_an_episode(made: Registry) -> None:
    a, b = versions_of(made, "mlp")

    async def play() -> None:
        served = Served(made, "mlp")
        batches: list[Any] = []
        served.swap(candidate=b)
        served.service.batcher._done = batches.append
        answers = [
            served.ask(version="candidate" if i % 3 == 0 else None, session="s", first=i == 0)
            if i == 1
            else served.ask(version="candidate" if i % 3 == 0 else None)
            for i in range(9)
            if i != 1
        ]
        told = await asyncio.gather(*answers)
        assert [d.version for d in told] == [b if i % 3 == 0 else a for i in range(9) if i != 1]
        assert sum(len(batch.asks) for batch in batches) == 8
        assert len(batches) <= 4  # the first one may have begun with one question
        assert all({ask.version for ask in batch.asks} == {batch.version} for batch in batches)

    asyncio.run(play())


def test_versions_and_sessions_that_are_not_there(made: Registry) -> None:
    async def play() -> None:
        now = [0.0]
        served = Served(made, "lstm", cap=2, clock=lambda: now[0])
        with pytest.raises(Refused, match=r"session: expected the name of an episode"):
            served.ask()
        with pytest.raises(Refused, match=r"never began"):
            served.ask(session="a")
        with pytest.raises(
            Refused, match=r"version: expected one .* got 'champoin'; did you mean 'champion'"
        ):
            served.ask(session="a", first=True, version="champoin")
        with pytest.raises(Refused, match=r"obs: expected shape \[4\]"):
            served.ask([1.0], session="a", first=True)
        assert len(served.sessions) == 0  # what was refused began nothing
        await served.ask(session="a", first=True)
        await served.ask(session="a")  # it goes on, so that no other gets its place
        now[0] = 40.0
        await served.ask(session="b", first=True)
        with pytest.raises(Refused, match="at most 2 open episodes"):
            served.ask(session="c", first=True)
        now[0] = 61.0
        await served.ask(session="c", first=True)  # the first one's time is over
        with pytest.raises(Refused, match="never began, is done, or had no request for 60 s"):
            served.ask(session="a")
        await served.ask(session="b", done=True)
        with pytest.raises(Refused, match="never began"):
            served.ask(session="b")

    asyncio.run(play())


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
def test_a_shadow_answers_to_the_log_alone(made: Registry, kind: str, tmp_path: Path) -> None:
    a, b = versions_of(made, kind)
    obs = observations(3, 6)

    async def play() -> list[Decision]:
        store = Store(tmp_path / "decisions")
        served = Served(made, kind, store)
        served.swap(shadow=b)
        told = []
        for t in range(6):
            told += await asyncio.gather(
                *[
                    served.ask(obs[i, t], session=str(i), first=t == 0, done=t == 5)
                    for i in range(3)
                ]
            )
        while served.service.batcher:
            await asyncio.sleep(0.002)
        assert [one.episodes for one in served.versions.now.by_alias.values()] == [0, 0]
        store.close()
        assert sum(served.service.metrics.shadows.values()) == 18
        return told

    told = asyncio.run(play())
    assert {d.version for d in told} == {a}
    file = sqlite3.connect(tmp_path / "decisions")
    answers = {
        id_: json.loads(action)
        for id_, version, action in file.execute("SELECT id, version, action FROM shadows")
        if version == b
    }
    file.close()
    policy = edge.EdgePolicy(made.resolve(kind, b)[1])
    expected = {
        told[3 * t + i].id: policy.act(obs[i, t], session=str(i))
        for t in range(6)
        for i in range(3)
    }
    assert answers == expected


def test_a_decision_has_what_evaluates_it(made: Registry, tmp_path: Path) -> None:
    async def play() -> list[Decision]:
        store = Store(tmp_path / "decisions")
        served = Served(made, "mlp", store)
        told = [await served.ask(deterministic=False, unit="user-1") for _ in range(20)]
        served.service.outcome([Outcome(told[0].id, 1.5, {"clicks": 2})], lambda fine: None)
        store.close()
        return told

    told = asyncio.run(play())
    file = sqlite3.connect(tmp_path / "decisions")
    rows = file.execute(
        "SELECT id, unit, version, deterministic, propensity, time, action FROM decisions ORDER BY "
        "time"
    ).fetchall()
    outcomes = file.execute("SELECT id, reward, data FROM outcomes").fetchall()
    file.close()
    assert [(row[0], row[1], json.loads(row[6])) for row in rows] == [
        (d.id, "user-1", d.action) for d in told
    ]
    assert len({d.id for d in told}) == 20 and {row[3] for row in rows} == {0}
    assert outcomes == [(told[0].id, 1.5, '{"clicks": 2}')]
    # the propensity of an action is how often it is drawn
    artifact = edge.Artifact.open(made.resolve("mlp")[1])
    batch, _ = artifact.read(np.tile(np.array(OBS, np.float32), (4000, 1)))
    raw, logp, _ = artifact.run(
        batch,
        np.ones(4000, bool),
        {},
        artifact.draw(0, np.arange(4000), np.zeros(4000)),
        np.zeros(4000, bool),
    )
    for d in told:
        assert logp is not None and d.propensity == pytest.approx(
            float(np.mean(raw["action"] == d.action)), abs=0.05
        )


class Wrong:
    """A model in place of a real one, whose answers are wrong in one way."""

    def __init__(self, model: Any, **wrong: Any) -> None:
        self._model, self._wrong = model, wrong

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def run(self, rows: Any, first: Any, state: Any, noise: Any, deterministic: Any) -> Any:
        if "error" in self._wrong:
            raise RuntimeError("broken")
        raw, logp, following = self._model.run(rows, first, state, noise, deterministic)
        if "drawn" in self._wrong:
            raw = {
                "action": np.where(
                    deterministic[:, None], raw["action"], self._wrong["drawn"]
                ).astype(np.float32)
            }
        if "all" in self._wrong:
            raw = {"action": np.full_like(raw["action"], self._wrong["all"])}
        if self._wrong.pop("state", False):  # once
            following = {name: x + np.nan for name, x in following.items()}
        return raw, logp, following


def test_the_shield(made: Registry) -> None:
    async def one(policy: str, rules: Rules, wrong: dict[str, Any], **given: Any) -> Decision:
        served = Served(made, policy, rules=rules)
        version = served.versions.now.champion
        if wrong:
            version.model = Wrong(version.model, **wrong)
        decision = await served.ask(**given)
        served.service.record()
        assert served.service.metrics.decisions[version.digest, decision.fallback or "policy"] == 1
        return decision

    async def play() -> None:
        best = await one("box", Rules(), {})
        assert best.fallback is None and best.propensity is None
        drawn = {"deterministic": False}
        nan = await one("box", Rules(), {"drawn": np.nan}, **drawn)
        assert (
            nan.fallback == "not-finite"
            and nan.action == best.action
            and nan.deterministic
            and nan.propensity is None
        )
        safe = await one("box", Rules(safe=[0.5, 0.25]), {"all": np.inf}, **drawn)
        assert safe.fallback == "not-finite" and safe.action == [0.5, 0.25]
        middle = await one("box", Rules(fallback="safe"), {"drawn": np.nan}, **drawn)
        assert middle.action == [0.0, 0.0]
        limited = await one("box", Rules(low=-3, high=[1.9, 1.9]), {"drawn": 1.95}, **drawn)
        assert limited.fallback == "limits" and limited.action == best.action
        assert (
            await one("box", Rules(low=-3, high=[1.99, 1.99]), {"drawn": 1.95}, **drawn)
        ).fallback is None
        failed = await one(
            "mask", Rules(), {"error": True}, obs={"obs": OBS, "action_mask": [0, 0, 1]}
        )
        assert failed.fallback == "failed" and failed.action == 2  # the first that is allowed
        served = Served(made, "lstm")
        version = served.versions.now.champion
        version.model = Wrong(version.model, state=True)
        told = [await served.ask(session="s", first=True)] + [
            await served.ask(session="s") for _ in range(2)
        ]
        # the state before it is kept, which is finite
        assert [d.fallback for d in told] == ["not-finite", None, None]

    asyncio.run(play())


def test_observations_out_of_their_quantiles(made: Registry) -> None:
    from equipoise.serving.shield import Shield

    spec = edge.Artifact.open(made.resolve("mlp")[1]).spec
    with pytest.raises(ValueError, match="expected an artifact with quantiles"):
        Shield(Rules(margin=1.0), {**spec, "artifact": {**spec["artifact"], "quantiles": {}}})
    quantiles = {
        "obs": {"q": [0.01, 0.5, 0.99], "values": [[-1, -1, -1, 0], [0, 0, 0, 0], [1, 1, 1, 0]]}
    }
    shield = Shield(
        Rules(margin=0.5), {**spec, "artifact": {**spec["artifact"], "quantiles": quantiles}}
    )
    rows = {
        "obs": np.array([[0, 0, 0, 0], [2, -2, 0, 0], [2.1, 0, 0, 0], [0, 0, 0, 0.1]], np.float32)
    }
    assert np.asarray(shield.outside(rows)).tolist() == [False, False, True, True]
    with pytest.raises(ValueError, match=r"--low: expected a policy whose action is a Box"):
        Shield(Rules(low=0), spec)
    with pytest.raises(ValueError, match=r"safe action: expected numbers of shape \[\]"):
        Shield(Rules(safe=[1, 2]), spec)
    for wrong in (9, -1, 0.5):
        with pytest.raises(
            ValueError, match=rf"safe action: expected whole numbers from 0.0 to .*, got {wrong}"
        ):
            Shield(Rules(safe=wrong), spec)
    Shield(Rules(safe=1), spec)


@pytest.mark.parametrize("inline", [True, False])
def test_a_deadline_answers_in_time(made: Registry, inline: bool) -> None:
    async def play() -> None:
        served = Served(made, "lstm")
        version = served.versions.now.champion
        version.inline, model = inline, version.model

        class Slow(Wrong):
            def run(self, *given: Any) -> Any:
                import time

                time.sleep(0.05)
                return model.run(*given)

        version.model = Slow(model)
        late = await served.ask(session="s", first=True, deadline_ms=10)
        assert late.fallback == "deadline" and late.action == 0
        fine = await served.ask(session="s", deadline_ms=5000)
        policy = edge.EdgePolicy(made.resolve("lstm")[1])
        policy.act(OBS)
        # the late row moved the memory on
        assert fine.fallback is None and fine.action == policy.act(OBS)
        while served.service.batcher:
            await asyncio.sleep(0.002)
        served.service.batcher.close()

    asyncio.run(play())


def test_without_a_log_nothing_is_explored(made: Registry, tmp_path: Path) -> None:
    async def play() -> None:
        store = Store(tmp_path / "decisions")
        served = Served(made, "mlp", store)
        assert (await served.ask(deterministic=False)).fallback is None
        store.alarm = "the disk is full"
        best = await served.ask()
        assert best.fallback is None
        drawn = await served.ask(deterministic=False)
        assert (drawn.fallback, drawn.deterministic, drawn.action, drawn.propensity) == (
            "unlogged",
            True,
            best.action,
            best.propensity,
        )
        assert served.service.state()["alarms"] == ["the disk is full"]
        store.close()

    asyncio.run(play())


def test_a_list_of_outcomes_is_stored_whole_or_not_at_all(made: Registry, tmp_path: Path) -> None:
    async def play() -> None:
        store = Store(tmp_path / "decisions", queue=3)
        service = Served(made, "mlp", store).service
        told: list[bool] = []
        with pytest.raises(Refused, match="3 records wait for the disk") as refused:
            service.outcome([Outcome(id="x") for _ in range(4)], told.append)
        assert refused.value.status == 507
        with pytest.raises(Refused, match="data: expected a value that JSON can hold"):
            service.outcome([Outcome(id="x"), Outcome(id="x", data=float("nan"))], told.append)
        service.outcome([Outcome(id="y") for _ in range(3)], told.append)
        store.close()
        assert told == [True] and store.written == 3 and store.lost == 4
        service.batcher.close()

    asyncio.run(play())
    file = sqlite3.connect(tmp_path / "decisions")
    assert file.execute("SELECT id FROM outcomes").fetchall() == [("y",)] * 3
    file.close()


def test_a_broken_shadow_delays_no_champion(
    made: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The registry is polled as ever,
    and what is broken is read again only where something moved.
    """
    a, b = versions_of(made, "mlp")
    aliases, polls, reads = {"champion": a, "shadow": "broken"}, [], []

    class Source:
        def revision(self, name: str) -> Any:
            polls.append(name)
            return aliases["champion"]

        def aliases(self, name: str) -> dict[str, str]:
            return dict(aliases)

        def resolve(self, name: str, version: str) -> tuple[str, Path]:
            if version == "broken":
                reads.append(version)
                return version, tmp_path
            return made.resolve(name, version)

    async def follow() -> None:
        versions = Versions(Source(), "mlp", Rules(), poll_s=0.001, trial=Trial())
        versions.start()
        versions.follow(asyncio.get_running_loop())

        async def until(true: Any) -> None:
            async with asyncio.timeout(20):
                while not true():
                    await asyncio.sleep(0.001)

        try:
            await until(lambda: len(polls) > 50)
            assert len(reads) == 1 and versions.alarm is not None
            aliases["champion"] = b
            await until(lambda: versions.now.champion.digest == b)
            moved = len(polls)
            await until(lambda: len(polls) > moved + 50)
            assert len(reads) == 2
        finally:
            versions.stop(20)

    monkeypatch.setattr("equipoise.serving.versions.RETRY_S", 1000.0)
    asyncio.run(follow())


def test_a_champion_with_other_spaces_is_not_served(made: Registry) -> None:
    """Who asks knows the old ones: the champion goes on, with an alarm, and its shadow stays."""
    a, b = versions_of(made, "mlp")
    (other,) = made.versions("box")
    paths = {
        version: made.resolve(policy, version)
        for policy, version in (("mlp", a), ("mlp", b), ("box", other))
    }

    class Source:
        aliases_ = {"champion": a, "shadow": b}

        def aliases(self, name: str) -> dict[str, str]:
            return self.aliases_

        def revision(self, name: str) -> Any:
            return 0

        def resolve(self, name: str, version: str) -> tuple[str, Path]:
            return paths[version]

    source = Source()
    versions = Versions(source, "mlp", Rules(), trial=Trial())
    versions.start()
    source.aliases_ = {"champion": other, "shadow": b}
    found = versions._load(source.aliases("mlp"))
    assert (found["champion"].digest, found["shadow"].digest) == (a, b)
    assert (
        "champion: expected the serving champion's actions, action: int64 [], got action: float32"
        in str(versions.alarm)
    )
    source.aliases_ = {"champion": b, "candidate": other}
    assert versions._load(source.aliases("mlp"))["candidate"].digest == other, (
        "who names it knows its spaces"
    )
    assert "candidate: expected the champion's actions" in str(versions.alarm), (
        "it cannot become the champion"
    )


def test_alarms_and_refusals_are_utf_8(made: Registry, tmp_path: Path) -> None:
    """Half of a letter in a file or a path of others was an error 500 of /readyz, which has servers
    ended.
    """
    data = json.dumps({"caf\udce9": 1}).encode()
    version = hashlib.sha256(data).hexdigest()
    copied = Registry(shutil.copytree(made.path, tmp_path / "registry"))
    copied.artifact(version).mkdir()
    (copied.artifact(version) / "manifest.json").write_bytes(data)
    for kind in ("added", "candidate"):
        records.write(
            copied.audit_folder("mlp"),
            copied.state("mlp").records,
            kind,
            version,
            who="x",
            reason="",
            details={},
        )

    async def ask() -> None:
        served = Served(copied, "mlp", store := Store(tmp_path / "caf\udce9"))
        store.close()
        store.alarm = f"{store.path}: no room"
        state = served.service.state()
        assert all(r"caf\udce9" in alarm for alarm in state["alarms"]) and len(state["alarms"]) == 2
        for codec in (messages.json, messages.msgpack):
            assert codec.encode(state)
            with pytest.raises(Refused, match="expected room for it, got none") as caught:
                served.service.outcome([Outcome("a", 1.0)], lambda stored: None)
            assert codec.encode(caught.value.body())

    asyncio.run(ask())
