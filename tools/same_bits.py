"""Compare the bits of two source trees: the same programs, run by both, must end with the same
parameters.

    python tools/same_bits.py OLD/src NEW/src [--only NAME ...]

Every program runs in lockstep (``--max-lag 0``) once with each tree, side by side, on one machine.
Lockstep makes a run a function of its program, so the weights of the last checkpoints must be
equal, all but the statistics of rewards: they were buffers of the network before they were the
learner's. Networks are built with one thread on both sides (``OMP_NUM_THREADS=1``), because
orthogonal initialisation rounds by the number of threads.

Exit status: 0 where all programs agree, 1 where one differs or fails.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

# rows that this tool writes before the first program, for both trees
RECORDED = "CartPole-v1 --dataset {rows} --batch 32 --steps 300"
LIMIT_S = 900.0  # one run may take so long, also on a busy machine


@dataclass(frozen=True)
class Case:
    """One program: the arguments of ``equipoise train``, and how many steps after the start the run
    is killed.
    """

    name: str
    arguments: str
    before: str = ""  # what ``rewards.normalize=true`` was in trees that do not know it
    # env steps of the checkpoint after which the run is killed and resumed
    kill_at: int | None = None
    # the program is run by the tree's own tests.runtime.machines instead: home and two sites, each
    # a process that shares no memory with the others
    machines: bool = False


def _cases() -> list[Case]:
    cart = "CartPole-v1 --actors 2 --envs-per-actor 8 --unroll 16 --steps 6000"
    off = (
        "--actors 2 --envs-per-actor 4 --unroll 8 --batch 64 --steps 4000 --set "
        "replay.starts_at=500"
    )
    pendulum = f"Pendulum-v1 {off}"
    pair = "tests.envs.games:Signal"
    policies = (
        "--policy tell=ppo --policy hear=ppo --set route.speaker=tell --set route.listener=hear"
    )
    text = (
        "sort --model tiny --actors 2 --envs-per-actor 8 --unroll 1 --batch 32 --steps 96 "
        "--max-completion-length 8"
    )
    return [
        Case("ppo serial", f"{cart} --algorithm ppo --on serial"),
        Case("ppo process", f"{cart} --algorithm ppo --on process"),
        Case("ppo lstm serial", f"{cart} --algorithm ppo --on serial --set algorithm.core=lstm"),
        Case(
            "ppo normalised process",
            f"{cart} --algorithm ppo --on process --set algorithm.normalize_obs=true --set "
            "rewards.normalize=true",
            before="algorithm.normalize_reward=true",
        ),
        Case("ppo central serial", f"{cart} --algorithm ppo --on serial --inference central"),
        Case("ppo central process", f"{cart} --algorithm ppo --on process --inference central"),
        Case(
            "ppo continuous process",
            "Pendulum-v1 --actors 2 --envs-per-actor 4 --unroll 32 --steps 6000 --algorithm ppo",
        ),
        Case("impala process", f"{cart} --algorithm impala --on process"),
        Case(
            "impala lstm process",
            f"{cart} --algorithm impala --on process --set algorithm.core=lstm",
        ),
        Case(
            "appo target serial",
            f"{cart} --algorithm appo --on serial --set algorithm.target_every=3",
        ),
        Case("appo process", f"{cart} --algorithm appo --on process"),
        Case("a3c process", f"{cart} --algorithm a3c --on process"),
        Case("dqn serial", f"CartPole-v1 {off} --algorithm dqn --on serial"),
        Case(
            "dqn prioritized process",
            f"CartPole-v1 {off} --algorithm dqn --on process --set replay.selector=prioritized",
        ),
        Case(
            "apex shards serial",
            f"CartPole-v1 {off} --algorithm apex_dqn --on serial --set replay.shards=2",
        ),
        Case(
            "apex shards process",
            f"CartPole-v1 {off} --algorithm apex_dqn --on process --set replay.shards=2",
        ),
        Case(
            "r2d2 process",
            "CartPole-v1 --actors 2 --envs-per-actor 4 --unroll 20 --batch 16 --steps 4000 "
            "--algorithm r2d2 --on process"
            " --set algorithm.burn_in=10 --set algorithm.length=20 --set replay.starts_at=500",
        ),
        Case("sac serial", f"{pendulum} --algorithm sac --on serial"),
        Case("sac process", f"{pendulum} --algorithm sac --on process"),
        Case("td3 process", f"{pendulum} --algorithm td3 --on process"),
        Case("a2c process", f"{cart} --algorithm a2c --on process"),
        Case("qr_dqn process", f"CartPole-v1 {off} --algorithm qr_dqn --on process"),
        Case("crossq process", f"{pendulum} --algorithm crossq --on process"),
        Case("tqc process", f"{pendulum} --algorithm tqc --on process"),
        Case("ppo learners process", f"{cart} --algorithm ppo --on process --learners 2"),
        Case(
            "ppo device serial",
            "device:cartpole --actors 1 --envs-per-actor 64 --unroll 16 --batch 64 --steps 16384 "
            "--algorithm ppo --on serial",
        ),
        Case("bc recorded serial", f"{RECORDED} --algorithm bc --on serial"),
        Case("bc recorded process", f"{RECORDED} --algorithm bc --on process"),
        Case("grpo text serial", f"{text} --algorithm grpo --on serial"),
        Case("grpo text process", f"{text} --algorithm grpo --on process"),
        Case("rloo text process", f"{text} --algorithm rloo --on process"),
        Case("reinforce_pp text process", f"{text} --algorithm reinforce_pp --on process"),
        Case("token_ppo text process", f"{text} --algorithm token_ppo --on process"),
        Case(
            "grpo text killed",
            f"{text} --algorithm grpo --on process --checkpoint-every 32",
            kill_at=32,
        ),
        Case("ppo machines", "CartPole-v1 ppo", machines=True),
        Case("dqn machines", "CartPole-v1 dqn", machines=True),
        Case("ppo ray", f"{cart} --algorithm ppo --on ray"),
        Case("grpo text ray", f"{text} --algorithm grpo --on ray"),
        Case(
            "two policies serial",
            f"{pair} --actors 2 --envs-per-actor 4 --unroll 25 --steps 4000 --on serial {policies}",
        ),
        Case(
            "two policies process",
            f"{pair} --actors 2 --envs-per-actor 4 --unroll 25 --steps 4000 --on process "
            f"{policies}",
        ),
        Case(
            "ppo killed",
            f"{cart} --algorithm ppo --on process --checkpoint-every 1024",
            kill_at=1024,
        ),
        Case(
            "dqn killed",
            f"CartPole-v1 {off} --algorithm dqn --on process --checkpoint-every 1024",
            kill_at=1024,
        ),
        Case(
            "impala central killed",
            f"{cart} --algorithm impala --on process --inference central --checkpoint-every 1024",
            kill_at=1024,
        ),
    ]


ON_MACHINES = """
import hashlib, sys
from pathlib import Path
from tests.runtime.machines import blue_of, finish, on_machines
if __name__ == "__main__":
    env, algorithm, folder = sys.argv[1:]
    away = {"site 0": ["actor 1"], "site 1": ["actor 2", "actor 3"]}
    print(finish(on_machines(blue_of(Path(folder), env, algorithm), away))[0])
"""


def _start(
    source: Path, arguments: list[str], program: str | None = None
) -> subprocess.Popen[bytes]:
    # the second has tests.envs, and tests.runtime.machines, which knows its own tree
    own = source.parent if (source.parent / "tests").is_dir() else Path(__file__).parents[1]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), str(own)])}
    env |= {"OMP_NUM_THREADS": "1"}
    ours = ["-c", "from equipoise.cli import main; main()"]
    command = [sys.executable, *([program] if program else ours), *arguments]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def _end(process: subprocess.Popen[bytes]) -> str:
    out, _ = process.communicate(timeout=LIMIT_S)
    if process.returncode:
        raise RuntimeError(
            f"exited with {process.returncode}: {out.decode(errors='replace')[-2000:]}"
        )
    return out.decode(errors="replace")


def _kill_after_checkpoint(process: subprocess.Popen[bytes], out: Path, step: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not any((out / "checkpoints").glob("step_*")) and process.poll() is None:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"expected a checkpoint near step {step}, got none in {LIMIT_S:.0f} s"
            )
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def weights_sha256(out: Path) -> str:
    """The hash of the weights in the newest checkpoint, by name,
    without the statistics of rewards.
    """
    newest = max(
        (out / "checkpoints").glob("step_*"), key=lambda path: int(path.name.split("_")[1])
    )
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(newest / "weights.safetensors").items()):
        if not name.startswith("returns."):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def last_weights(source: Path, case: Case, out: Path) -> str:
    """Run one program with one tree -> the hash of the weights that it ends with."""
    common = [
        "--seed",
        "5",
        "--no-recipe",
        "--max-lag",
        "0",
        "--evaluate-episodes",
        "0",
        "--no-tensorboard",
        "--quiet",
    ]
    arguments = case.arguments
    if case.before and not (source / "equipoise/rewards").exists():
        arguments = arguments.replace("rewards.normalize=true", case.before)
    if case.machines:
        script = out.with_suffix(".py")
        script.write_text(ON_MACHINES)
        process = _start(source, [*arguments.split(), str(out)], str(script))
        try:
            return _end(process).splitlines()[-1].split("'")[-2]
        finally:
            _kill(process)
    arguments = arguments.replace("{rows}", str(out.parent / "rows"))
    process = _start(source, ["train", *arguments.split(), *common, "--out", str(out)])
    try:
        if case.kill_at is not None:
            _kill_after_checkpoint(process, out, case.kill_at)
            process = _start(source, ["resume", str(out), "--quiet"])
        _end(process)
    finally:
        _kill(process)
    return weights_sha256(out)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def record(source: Path, place: Path) -> None:
    """Write the rows that the programs with a data set learn from."""
    run = place / "recorder"
    quick = "CartPole-v1 --steps 2000 --seed 5 --evaluate-episodes 0 --no-tensorboard --quiet"
    _end(_start(source, ["train", *quick.split(), "--on", "serial", "--out", str(run)]))
    _end(
        _start(source, ["collect", str(run), "--dataset", str(place / "rows"), "--episodes", "20"])
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--only", nargs="*", default=[], help="names of programs, or the beginnings of names"
    )
    args = parser.parse_args()
    cases = [
        case
        for case in _cases()
        if not args.only or any(case.name.startswith(name) for name in args.only)
    ]
    wrong = 0
    with (
        ThreadPoolExecutor(2) as pool,
        tempfile.TemporaryDirectory(prefix="equipoise-bits-") as place,
    ):
        if any("{rows}" in case.arguments for case in cases):
            record(args.old.resolve(), Path(place))
        for i, case in enumerate(cases):
            sides = [
                pool.submit(last_weights, source.resolve(), case, Path(place) / f"{i}-{side}")
                for side, source in (("old", args.old), ("new", args.new))
            ]
            try:
                old, new = (side.result() for side in sides)
            except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
                wrong += 1
                print(f"FAILED  {case.name}: {error}", flush=True)
                continue
            wrong += old != new
            print(
                f"{'same   ' if old == new else 'DIFFERS'} {case.name}: {old[:12]} {new[:12]}",
                flush=True,
            )
    print(f"{len(cases) - wrong} of {len(cases)} programs have the same bits")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
