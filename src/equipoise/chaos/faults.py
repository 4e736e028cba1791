"""The faults. Each one attacks a run and states what must follow; for all of them every row must be
accounted for.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from equipoise.chaos import lossy
from equipoise.chaos.attack import CHECKPOINT_EVERY, ENVS, UNROLL, Attack, Wrong

SHARDS = 3


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    what: str
    do: Callable[[Attack, float], None]  # acts on the run for this many seconds, and ends it


def need(condition: object, why: str) -> None:
    if not condition:
        raise Wrong(why)


def need_replaced(attack: Attack, killed: int, workers: str, lost: str = "") -> None:
    need(
        attack.noted(f"was killed by SIGKILL; {lost}replaced") >= killed,
        f"{killed} {workers} were killed, and fewer replaced",
    )


def kill_in_turn(attack: Attack, workers: Sequence[str], seconds: float) -> int:
    """Kill these workers in turn, each at least once, until the time is over -> the number."""
    until, n = time.monotonic() + seconds, 0
    while time.monotonic() < until or n < len(workers):
        worker = workers[n % len(workers)]
        attack.replaced(worker, attack.signal(worker, signal.SIGKILL))
        n += 1
    return n


def kill_actor(attack: Attack, seconds: float) -> None:
    attack.train()
    n = kill_in_turn(attack, ["actor 0", "actor 1"], seconds)
    attack.end()
    need_replaced(attack, n, "actors")


def stop_actor(attack: Attack, seconds: float) -> None:
    attack.train()
    attack.replaced("actor 1", attack.signal("actor 1", signal.SIGSTOP))
    attack.end()
    need(attack.noted("actor 1 did nothing for"), "no note of a worker that did nothing")


def hang_env(attack: Attack, seconds: float) -> None:
    attack.train("env.trouble=hang", "env.every=200")
    before = attack.workers()["actor 0"]
    attack.trouble(True)
    attack.replaced("actor 0", before)
    attack.trouble(False)
    attack.updates(10)
    attack.end()
    need(attack.noted("actor 0 did nothing for"), "no note of a worker that did nothing")


def kill_learner(attack: Attack, seconds: float) -> None:
    attack.train()
    until, n = time.monotonic() + seconds, 0
    while time.monotonic() < until or n < 2:
        attack.replaced("learner", attack.signal("learner", signal.SIGKILL))
        n += 1
        attack.updates(3 * CHECKPOINT_EVERY // (2 * ENVS * UNROLL))
    attack.end()
    need(
        attack.noted("learner was killed by SIGKILL; the run goes on"),
        "no note of a learner that was killed",
    )


def kill_one_of_two_learners(attack: Attack, seconds: float) -> None:
    attack.train("placement.learners=2")
    until, n = time.monotonic() + seconds, 0
    while time.monotonic() < until or n < 2:
        worker = ("learner", "learner 1")[n % 2]
        attack.replaced(worker, attack.signal(worker, signal.SIGKILL))
        n += 1
        attack.updates(20)
    attack.end()
    need_replaced(attack, n, "learners")
    need(not attack.noted("warning: actor"), "an actor was lost as well")


def stop_learner(attack: Attack, seconds: float) -> None:
    attack.train()
    attack.replaced("learner", attack.signal("learner", signal.SIGSTOP))
    attack.end()
    need(attack.noted("learner did nothing for"), "no note of a learner that did nothing")


def kill_shard(attack: Attack, seconds: float) -> None:
    settings = (
        f"replay.shards={SHARDS}",
        "replay.capacity=6000",
        "replay.selector=prioritized",
        "replay.updates=4",
    )
    attack.train(*settings, algorithm="Replayed", actors=SHARDS)
    every = [f"shard {k}" for k in range(SHARDS)]
    n = kill_in_turn(attack, every, seconds)
    # most likely during a round
    for worker, pid in [(worker, attack.signal(worker, signal.SIGKILL)) for worker in every]:
        attack.replaced(worker, pid)
        n += 1
    attack.end()
    need_replaced(attack, n, "shards", lost="its rows are lost; ")
    need(not attack.noted("learner"), "the learner failed as well")
    need(
        attack.summary["rows"]["lost"],
        f"{n} shards were killed, and the run reports that no row was lost",
    )


def kill_inference(attack: Attack, seconds: float) -> None:
    attack.inference = "central"
    attack.train("placement.inference_workers=2")
    n = kill_in_turn(attack, ["inference 0", "inference 1"], seconds)
    attack.end()
    need_replaced(attack, n, "inference workers")


def kill_driver(attack: Attack, seconds: float) -> None:
    attack.train()
    attack.wait(attack.newest, "a checkpoint")
    attack.kill_driver()
    attack.gone()
    attack.resume()
    attack.end()


def terminate_driver(attack: Attack, seconds: float) -> None:
    attack.train()
    attack.begin()
    attack.terminate()
    left_at = attack.summary["env_steps"]
    attack.resume()
    need(
        attack.resumed_at() == left_at,
        f"left at step {left_at}, went on from {attack.resumed_at()}",
    )
    attack.end()


def full_disk(attack: Attack, seconds: float) -> None:
    """Limit files to 64 bytes: each write of the run fails half-way, as on a full disk."""
    attack.train()
    attack.wait(attack.newest, "a checkpoint")
    attack.limit_files(64)
    before = attack.newest()
    attack.updates(3 * CHECKPOINT_EVERY // (2 * ENVS * UNROLL))
    limited = attack.newest()
    attack.limit_files(-1)
    attack.wait(lambda: attack.newest() not in (before, limited), "a checkpoint once there is room")
    attack.end()
    need(attack.noted("no checkpoint at step"), "no note of a checkpoint that could not be written")


def torn_checkpoint(attack: Attack, seconds: float) -> None:
    attack.train()
    places = attack.out / "checkpoints"
    attack.wait(lambda: len(list(places.glob("step_*/manifest.json"))) >= 2, "two checkpoints")
    attack.kill_driver()
    newest = attack.newest()
    assert newest is not None
    os.truncate(
        newest / "learner.safetensors", (newest / "learner.safetensors").stat().st_size // 2
    )
    whole = attack.newest()
    need(
        whole is not None and whole != newest,
        f"expected an older checkpoint than {newest.name}, got {whole}",
    )
    attack.resume()
    need(
        whole is not None and f"step_{attack.resumed_at()}" == whole.name,
        f"went on from step {attack.resumed_at()}, not {whole}",
    )
    attack.end()


def drop_weights(attack: Attack, seconds: float) -> None:
    attack.train(before="from equipoise.chaos import lossy\nlossy.install()", max_lag="none")
    attack.begin()
    attack.wait(attack.recorded, "a record of the lag")
    attack.end()
    lag = attack.summary["lag"]["max"]
    need(
        lag >= lossy.LOST // 2,
        f"{lossy.LOST} publishes in a row were lost, and the run reports that no lag was above "
        f"{lag}",
    )


def raise_env(attack: Attack, seconds: float) -> None:
    attack.train("env.trouble=raise", "env.every=1000", "algorithm.aborts=true")
    _troubled(attack, seconds)


def nonfinite_env(attack: Attack, seconds: float) -> None:
    attack.train(
        "env.trouble=nonfinite",
        "env.every=1000",
        "algorithm.aborts=true",
        "source.on_nonfinite=drop",
    )
    _troubled(attack, seconds)


def _troubled(attack: Attack, seconds: float) -> None:
    attack.trouble(True)
    attack.go_on(seconds)
    attack.updates(1000 * 3 // UNROLL)
    attack.trouble(False)
    attack.end()
    need(attack.rows().aborted or attack.noted("raised an exception; replaced"), "no env failed")


FAULTS = (
    Fault("kill-actor", "an actor is killed (SIGKILL), again and again", kill_actor),
    Fault("stop-actor", "an actor is stopped (SIGSTOP) for good", stop_actor),
    Fault("hang-env", "an env hangs in a step", hang_env),
    Fault("kill-learner", "the learner is killed, again and again", kill_learner),
    Fault(
        "kill-one-learner", "one of 2 learners is killed, again and again", kill_one_of_two_learners
    ),
    Fault("stop-learner", "the learner is stopped for good", stop_learner),
    Fault(
        "kill-shard",
        f"a replay's {SHARDS} shards are killed, in turn and then all at once",
        kill_shard,
    ),
    Fault(
        "kill-inference", "one of 2 inference workers is killed, again and again", kill_inference
    ),
    Fault("kill-driver", "everything is killed at once, and resumed", kill_driver),
    Fault("terminate-driver", "the run is stopped (SIGTERM), and resumed", terminate_driver),
    Fault("full-disk", "no file can be written for a while", full_disk),
    Fault(
        "torn-checkpoint", "killed, the newest checkpoint cut in half, and resumed", torn_checkpoint
    ),
    Fault(
        "drop-weights", f"{lossy.LOST} publishes of every {2 * lossy.LOST} are lost", drop_weights
    ),
    Fault("raise-env", "envs raise now and then", raise_env),
    Fault("nonfinite-env", "envs give nan now and then", nonfinite_env),
)
