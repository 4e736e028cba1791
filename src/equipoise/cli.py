"""The command line. Nothing heavy is imported here before a command runs: ``equipoise --help`` answers at once.

Numbers arrive as texts and are read like those of ``--set``: 500k is a number, and an error says what came.

Exit codes: 0 done, 1 a worker failed, a check found an error or a replay failed in the same way, 2 what was asked for cannot
be, 3 a replay did not fail in the same way, 130 interrupted by Ctrl-C and 143 by SIGTERM (a run that has begun is saved all the
same, and ``resume`` goes on with it).
"""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from equipoise.console.help import OneLineErrors, Sections, fail, leaving, one_line, plain_errors, printable
from equipoise.console.options import TrainHelp, read, settings_options
from equipoise.types import OUT, WHAT, WHERE

if TYPE_CHECKING:
    from equipoise.console.terminal import View
    from equipoise.runtime.run import Run

ALGORITHMS = ", ".join(sorted(file.stem for file in Path(__file__).parent.glob("algorithms/[!_]*.py")))


app = typer.Typer(
    name="equipoise",
    cls=OneLineErrors,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # Python's own traceback is what people paste into issues
    context_settings={"help_option_names": ["-h", "--help"]},
)

Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="MODULE",
        help="A module, or module:callable, that a file from elsewhere names and may run.",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the Python traceback of an error.")]


def _version(asked: bool) -> None:
    if asked:
        from equipoise import __version__

        print(f"equipoise {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="""Start here:
  equipoise train CartPole-v1 --stop-at 475
  equipoise evaluate runs/NAME-OF-THE-RUN""",
)
def equipoise(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Reinforcement learning: actors make experience, learners consume it, and the two are kept in balance."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(
    cls=TrainHelp,
    epilog="""Examples:
  equipoise train CartPole-v1                      PPO, with the tuned settings
  equipoise train CartPole-v1 --stop-at 475        until it is solved
  equipoise train Acrobot-v1 --algorithm impala --actors 2 --max-lag 1
  equipoise train CartPole-v1 --set algorithm.gamma=0.98 --set policy.unroll=64
  equipoise train my_package.envs:make_env         a function of your own
  equipoise train CartPole-v1 --on serial --debug  one thread, for a debugger""",
)
@settings_options()
@leaving()
def train(
    env: Annotated[
        str, typer.Argument(metavar="ENV", help="A Gymnasium id such as CartPole-v1, or module:id, or module:callable.")
    ],
    algorithm: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"{ALGORITHMS}, or module:Class for your own. Default ppo.", rich_help_panel=WHAT),
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME=ALGORITHM",
            help="One of several policies of a PettingZoo env; NAME=past:OTHER plays past versions of OTHER. Agents go to "
            "--set route.AGENT=NAME, else to main.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any setting, as often as you like: algorithm.gamma=0.98, policy.publish_every=2, env.max_episode_steps=200.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    recipe: Annotated[
        bool, typer.Option(help="Begin with the tuned settings for this env, where there are some.", rich_help_panel=WHAT)
    ] = True,
    on: Annotated[
        str,
        typer.Option(
            metavar="serial|process", help="All in one thread, or each actor in a process of its own.", rich_help_panel=WHERE
        ),
    ] = "process",
    init_from: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Begin with the weights of that run, or checkpoint.", rich_help_panel=WHAT),
    ] = None,
    init_what: Annotated[
        str,
        typer.Option(
            metavar="weights|learner",
            help="What --init-from takes: the weights alone, or the optimiser, target network, statistics and schedule, too.",
            rich_help_panel=WHAT,
        ),
    ] = "weights",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A new directory for the run. Default: runs/ENV-ALGORITHM-SEED-TIME.",
            rich_help_panel=OUT,
        ),
    ] = None,
    tensorboard: Annotated[bool, typer.Option(help="Write event files into DIR.", rich_help_panel=OUT)] = True,
    wandb: Annotated[
        str | None,
        typer.Option(
            metavar="PROJECT", help='Report to Weights & Biases as well (needs the extra "wandb").', rich_help_panel=OUT
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the summary only.", rich_help_panel=OUT)] = False,
    debug: Debug = False,
    **options: str | None,
) -> None:
    """Train a policy on ENV; watch the ring; Ctrl-C saves and stops.

    Everything the run leaves behind is in one directory, which the other commands read.
    """
    with plain_errors("equipoise train", debug):
        from equipoise.runtime.settings import convert

        where: Literal["serial", "process"] = convert(on, Literal["serial", "process"], "--on")
        measured = options["inference"] == "auto"
        given, more = read(options | {"inference": None} if measured else options)
        if where == "process":
            from equipoise.runtime.forkserver import prepare

            prepare(central=options["inference"] in ("central", "auto"))  # its import of torch runs beside ours, which is next
        from equipoise import api, recipes
        from equipoise.console.terminal import View

        if policies:
            given["policies"] = policies
        made = api.measurable if measured else api.program
        program = made(env, algorithm, settings=(*(settings or ()), *more), recipe=recipe, **given)
        if recipe and program.placement.precision == "fp32" and (why := recipes.falls_back(env, algorithm or "ppo")):
            print(why, file=sys.stderr)
        auto: dict[str, Any] = {"inference": "auto", "tell": lambda text: print(text, file=sys.stderr)} if measured else {}
        begin: dict[str, Any] = {"init_from": init_from, "init_what": init_what}
        run = api.train(program, on=where, out=out, tensorboard=tensorboard, wandb=wandb, **begin, **auto)
        view = View(run.program, on=run.on, quiet=quiet)
    sys.exit(watch(run, view, "train"))


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise resume runs/NAME                   from its newest checkpoint, to its end
  equipoise resume runs/NAME --steps 2M        further than it was to go
  equipoise resume runs/NAME --on serial --debug""",
)
@settings_options(resume=True)
@leaving()
def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory, such as runs/NAME.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting to change, such as algorithm.entropy=0."),
    ] = None,
    on: Annotated[
        str | None, typer.Option(metavar="serial|process", help="Where it runs. Default: where it ran before.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the summary only.")] = False,
    trust: Trust = None,
    debug: Debug = False,
    **options: str | None,
) -> None:
    """Go on with a run that was interrupted, killed or has ended, from its newest checkpoint.

    The schedules keep the length that the run began with. What changed is listed; what cannot change is refused.
    """
    with plain_errors("equipoise resume", debug):
        from equipoise.runtime.settings import convert

        where: Literal["serial", "process"] | None = None
        if on is not None:
            where = convert(on, Literal["serial", "process"], "--on")
        given, more = read(options)
        from equipoise import api
        from equipoise.console.terminal import View

        try:
            run = api.resume(directory, on=where, settings=(*(settings or ()), *more), **vouched(trust), **given)
        except api.NothingToDo as done:
            print(done)
            sys.exit(0)
        for key, (before, after) in run.changes.items():
            print(f"changed: {key} {before!r} -> {after!r}")
        view = View(run.program, on=run.on, quiet=quiet)
    sys.exit(watch(run, view, "resume"))


def vouched(trust: list[str] | None) -> dict[str, Any]:
    """What ``--trust`` hands on to the API."""
    return {"trust": trust} if trust else {}


def watch(run: Run, view: View, command: str) -> int:
    """Show a run of ``command`` to its end; returns the exit code."""
    from equipoise.learners.learner import NonFiniteUpdate
    from equipoise.runtime.errors import CannotStart, WorkerFailed
    from equipoise.runtime.session import Preempted

    failed: WorkerFailed | None = None
    said = ""
    interrupted = preempted = False
    try:
        # The view is left first: closing the run takes a moment and may print.
        with run, view:
            for report in run:
                view.update(report)
    except KeyboardInterrupt as error:
        interrupted, preempted = True, isinstance(error, Preempted)
    except WorkerFailed as error:
        failed, said = error, error.sentence
    except NonFiniteUpdate as error:  # on serial
        said = str(error)
    except CannotStart as error:
        fail(str(error), f"equipoise {command}")
    if run.summary is not None:
        view.summarise(run.summary, run.directory)
        interrupted = interrupted or run.summary["status"] == "interrupted"
    if said:
        fail(said, f"equipoise {command}", code=1)
    if failed is not None:
        print(f"\n{failed.traceback_text}".rstrip(), file=sys.stderr)
        print(f"equipoise {command}: {str(failed).partition(chr(10))[0]}", file=sys.stderr)
        return 1
    if preempted:
        return 143
    return 130 if interrupted else 0


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise evaluate runs/CartPole-v1-ppo-0-20260101-120000
  equipoise evaluate runs/NAME --episodes 100 --stochastic
  equipoise evaluate runs/NAME --episodes 1 --video
  equipoise evaluate runs/NAME --recorded rows.npz --out actions.npz   what it would do; needs no env""",
)
def evaluate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory, such as runs/NAME.")],
    episodes: Annotated[str, typer.Option(metavar="N", help="Fresh episodes; 'train' has --evaluate-episodes.")] = "20",
    stochastic: Annotated[
        bool, typer.Option("--stochastic", help="Draw actions as in training, not the most likely one.")
    ] = False,
    seed: Annotated[str, typer.Option(metavar="N", help="Of the episodes.")] = "0",
    best: Annotated[
        bool, typer.Option("--best", help="The weights of the run's best evaluation, not its newest ones.")
    ] = False,
    video: Annotated[
        bool, typer.Option("--video", help='Also write a video into DIR/videos (needs the extra "video").')
    ] = False,
    recorded: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|ID",
            help="Play recorded observations instead of episodes: an npz file with obs [N, ...] (action, first), or a Minari "
            "data set. The env's package is not needed.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="With --recorded: write the actions there, as npz.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the return only, not how far it is.")] = False,
    trust: Trust = None,
    debug: Debug = False,
) -> None:
    """Play fresh episodes with the newest weights of a run, or those that solved it, and print their return."""
    if recorded is not None:
        given = {"deterministic": not stochastic, "best": best, **vouched(trust)}
        play_recorded(directory, recorded, out, seed=seed, video=video, debug=debug, **given)
        return
    with plain_errors("equipoise evaluate", debug):
        from equipoise.runtime.settings import convert

        if out is not None:
            raise ValueError(f"--out {out}: expected --recorded FILE with it, since fresh episodes write no actions")

        count, start = convert(episodes, int, "--episodes"), convert(seed, int, "--seed")
        from equipoise import api
        from equipoise.console.terminal import Progress

        told: dict[str, Any] = {} if quiet else {"tell": Progress()}
        result = api.evaluate(
            directory, episodes=count, deterministic=not stochastic, seed=start, best=best, video=video,
            **vouched(trust), **told,
        )  # fmt: skip
    policy = "stochastic" if stochastic else "deterministic"
    print(
        f"return {result.mean:,.1f} +/- {result.std:,.1f} over {result.episodes} episodes "
        f"({policy} policy, weights of step {result.step:,})"
    )
    for name, mean in result.policies.items():
        print(f"  {name} {mean:,.1f}")
    if video:
        print(f"video in {shlex.quote(str(directory / 'videos'))}")


def play_recorded(
    directory: Path, recorded: str, out: Path | None, *, seed: str, video: bool, debug: bool, **given: Any
) -> None:
    """Play recorded observations and print how the actions agree with the recorded ones."""
    with plain_errors("equipoise evaluate", debug):
        from equipoise import api
        from equipoise.runtime.settings import convert

        if video:
            raise ValueError(
                "--video: expected fresh episodes, since recorded observations are not drawn; leave --recorded out"
            )
        start = convert(seed, int, "--seed")
        played = api.play(directory, recorded, seed=start, **given)
        if out is not None:
            played.save(out)
    print(f"played {played.rows:,} rows of {played.episodes:,} episodes (weights of step {played.step:,})")
    for path, share in played.same.items():
        print(f"  {path}: {share:.1%} as recorded")
    for path, distance in played.distance.items():
        print(f"  {path}: {distance:.4g} from the recorded one on average")
    if out is not None:
        print(f"actions in {shlex.quote(str(out))}")


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise collect runs/NAME --dataset cartpole/expert-v0
  equipoise collect runs/NAME --dataset data/expert --episodes 50 --deterministic
  equipoise train CartPole-v1 --algorithm bc --dataset cartpole/expert-v0 --steps 5k""",
)
def collect(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory, such as runs/NAME.")],
    dataset: Annotated[
        str,
        typer.Option(metavar="ID|DIR", help="A Minari id such as cartpole/expert-v0, or a new directory, for the data set."),
    ],
    episodes: Annotated[str, typer.Option(metavar="N", help="Fresh episodes to play.")] = "100",
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The most likely action, not one drawn as at the end of training.")
    ] = False,
    seed: Annotated[str, typer.Option(metavar="N", help="Of the episodes.")] = "0",
    best: Annotated[
        bool, typer.Option("--best", help="The weights of the run's best evaluation, not its newest ones.")
    ] = False,
    trust: Trust = None,
    debug: Debug = False,
) -> None:
    """Save episodes of a run's policy as a Minari data set, which 'train --dataset' learns from."""
    with plain_errors("equipoise collect", debug):
        from equipoise.runtime.settings import convert

        count, start = convert(episodes, int, "--episodes"), convert(seed, int, "--seed")
        from equipoise import api

        made = api.collect(
            directory, dataset, episodes=count, deterministic=deterministic, seed=start, best=best, **vouched(trust)
        )
        returns = [float(one.reward.sum()) for one in made]
    print(f"{made.episodes:,} episodes, {made.steps:,} steps, return {sum(returns) / len(returns):,.1f}")
    print(made.place)


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise check CartPole-v1
  equipoise check my_package.envs:make_env --set env.size=8
  equipoise check ALE/Pong-v5 --steps 5k""",
)
def check(
    env: Annotated[str, typer.Argument(metavar="ENV", help="As for train: a Gymnasium id, or module:id, or module:callable.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="env.KEY=VALUE", help="An argument of the env, as often as you like.")
    ] = None,
    steps: Annotated[str | None, typer.Option(metavar="N", help="Steps of each of several walks. Default 1500.")] = None,
    seed: Annotated[str, typer.Option(metavar="N", help="Of the env and of the random actions.")] = "0",
    debug: Debug = False,
) -> None:
    """Find out what is wrong with ENV before training does, and what it will cost.

    It ends with 1 if training or a resume would go wrong; notes alone, things that merely cost something, end with 0.
    """
    with plain_errors("equipoise check", debug):
        from equipoise.runtime.settings import convert, env_of

        given = {"seed": convert(seed, int, "--seed")}
        if steps is not None:
            given["steps"] = convert(steps, int, "--steps")
        from equipoise.console.findings import lines
        from equipoise.envs.check import check_env  # not through api, which takes a second to import torch

        report = check_env(env_of(env, settings or ()), **given)
    print("\n".join(lines(report)))
    sys.exit(0 if report.ok else 1)


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise replay runs/NAME/capsules/exception-ValueError-my_env.py-42-01
  equipoise replay CAPSULE --pdb       look around where it failed""",
)
def replay(
    path: Annotated[Path, typer.Argument(metavar="CAPSULE", help="A directory in a run's capsules/.")],
    pdb: Annotated[bool, typer.Option("--pdb", help="Enter Python's debugger where the env fails.")] = False,
    trust: Trust = None,
    debug: Debug = False,
) -> None:
    """Do again, in this process, what an env did up to its failure; the env's module is imported.

    Exit code 1: the same failure came again. 3: it did not.
    """
    with plain_errors("equipoise replay", debug):
        from equipoise import tree
        from equipoise.envs import capsule as capsules

        capsule = capsules.read(path, trust or ())
        say(f"env       {capsule.env.target} {dict(capsule.env.kwargs) or ''}".rstrip())
        say(
            f"stream    {'all' if capsule.stream is None else capsule.stream}, step {capsule.step}; "
            f"{len(tree.leaves(capsule.actions)[0])} actions since its {capsule.start.kind}"
        )
        say(f"failed    {capsule.error}: {capsule.message}")
        say(f"importing {imported(capsule.env.target)}")
        from equipoise.envs.replay import replay as play

        played = play(capsule)
    error = played.error
    if error is not None:
        import traceback

        print(printable("".join(traceback.format_exception(error))), end="", file=sys.stderr)
        if pdb:
            from pdb import post_mortem

            post_mortem(error.__traceback__)
    if played.same:
        say(f"reproduced: {type(error).__name__}: {error}")
        sys.exit(1)
    came = "nothing was raised" if error is None else f"another exception came, {type(error).__name__}: {error}"
    say(f"not reproduced: {played.steps} steps were done and {came}")
    say(f"expected: {capsule.error}: {capsule.message}")
    sys.exit(3)


def say(text: str) -> None:
    """What a capsule says may come from anywhere."""
    print(printable(text), flush=True)


def imported(target: str) -> str:
    """The module that an env's target makes Python import, in words."""
    from gymnasium import registry

    name = target.removeprefix("python:")
    module, _, rest = name.rpartition(":")
    if module:
        return module if module != "envpool" else f"envpool, for its env {rest}"
    entry = registry[name].entry_point if name in registry else None
    return f"{str(entry).partition(':')[0]}, which Gymnasium names for {name}" if entry else f"nothing: Gymnasium has no {name}"


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise chaos                                  the whole matrix, in a few minutes
  equipoise chaos --faults kill-actor,full-disk    two of them
  equipoise chaos --list                           what there is""",
)
def chaos(
    faults: Annotated[str, typer.Option(metavar="A,B", help="Which ones, by name. Default: all.")] = "",
    seconds: Annotated[str, typer.Option(metavar="S", help="How long a fault that comes again is kept up.")] = "4",
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the matrix there as well.")] = None,
    inference: Annotated[str, typer.Option(metavar="local|central", help="Who acts in those runs.")] = "local",
    list_: Annotated[bool, typer.Option("--list", help="Name the faults and end.")] = False,
    debug: Debug = False,
) -> None:
    """Do to real runs what machines do to them, and prove what became of every row.

    Each fault gets a run of its own, of an env whose rows prove where they belong. Ends with 1 unless all pass.
    """
    with plain_errors("equipoise chaos", debug):
        from equipoise.runtime.settings import convert

        kept_up = convert(seconds, float, "--seconds")
        from equipoise.chaos.faults import FAULTS
        from equipoise.chaos.matrix import chosen, matrix
        from equipoise.files import json_bytes, write_atomic
        from equipoise.types import Inference

        acts: Inference = convert(inference, Inference, "--inference")

        picked = chosen([name for name in faults.split(",") if name])
        if list_:
            print("\n".join(f"{fault.name:<17} {fault.what}" for fault in FAULTS))
            sys.exit(0)
        results = matrix(picked, kept_up, lambda line: print(line, flush=True), acts)
        passed = all(result.passed for result in results)
        if json is not None:
            write_atomic(json, json_bytes({"passed": passed, "seconds": kept_up, "inference": acts, "faults": results}))
    sys.exit(0 if passed else 1)


def look_here_last() -> None:
    """Let ``my_envs:make_env`` be found where the command is typed, after all that is installed.

    A random.py of the user's must not take the place of Python's, which torch imports.
    """
    here = os.getcwd()
    if not sys.flags.safe_path and sys.path[:1] in ([""], [here]):  # by python -c and -m
        del sys.path[0]
    if here not in sys.path:
        sys.path.append(here)


def main() -> None:
    look_here_last()
    warnings.formatwarning = one_line
    app(prog_name="equipoise")
