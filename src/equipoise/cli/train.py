"""``equipoise train``: train a policy on an env."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise import phases
from equipoise.cli.app import (
    Algorithm,
    Callbacks,
    Config,
    Debug,
    Env,
    HelpAll,
    Prometheus,
    Recipe,
    Trust,
    app,
    place,
)
from equipoise.cli.cluster import Address, ClusterSettings, cluster_settings
from equipoise.cli.reward_models import NAME, fit
from equipoise.cli.seeds import check_seeds
from equipoise.cli.show import show
from equipoise.cli.studies import carried_on_shown
from equipoise.console.help import leaving, plain_errors
from equipoise.console.options import TrainHelp, read, settings_options
from equipoise.console.place import say
from equipoise.console.starting import Starting
from equipoise.files import is_url
from equipoise.types import OUT, WHAT, WHERE, On, Program


@app.command(
    cls=TrainHelp,
    epilog="""Examples:
  equipoise train CartPole-v1                      PPO, with the tuned settings
  equipoise train CartPole-v1 --stop-at 475        until it is solved
  equipoise train Acrobot-v1 --algorithm impala --actors 2 --max-lag 1
  equipoise train CartPole-v1 --set algorithm.gamma=0.98 --set policy.unroll=64
  equipoise train my_package.envs:make_env         a function of your own
  equipoise train sort --algorithm grpo            text, by a language model
  equipoise train CartPole-v1 --on serial --debug  for a debugger""",
)
@settings_options()
@leaving()
def train(
    env: Env = None,
    algorithm: Algorithm = None,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="NAME=ALGORITHM",
            help="Policy of some agents; --set route.AGENT=NAME assigns them",
            rich_help_panel=WHAT,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any other setting, such as algorithm.core=lstm; repeatable",
            rich_help_panel=WHAT,
        ),
    ] = None,
    config: Config = None,
    save_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File to write all settings to; nothing is trained",
            rich_help_panel=OUT,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print all settings and files; train nothing",
            rich_help_panel=OUT,
        ),
    ] = False,
    help_all: HelpAll = False,
    recipe: Recipe = True,
    on: Annotated[
        str,
        typer.Option(
            metavar="serial|process|ray",
            help="One thread, processes, or a Ray cluster",
            rich_help_panel=WHERE,
        ),
    ] = "process",
    address: Address = None,
    cluster: ClusterSettings = None,
    init_from: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Run or checkpoint to take the first weights from",
            rich_help_panel=WHAT,
        ),
    ] = None,
    init_what: Annotated[
        str,
        typer.Option(
            metavar="weights|learner",
            help="Parts to take: the weights, or the learner's whole state",
            rich_help_panel=WHAT,
        ),
    ] = "weights",
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URL",
            help="New directory, or URL of a copy (default: runs/ENV-ALGORITHM-SEED-TIME)",
            rich_help_panel=OUT,
        ),
    ] = None,
    or_resume: Annotated[
        bool,
        typer.Option(
            "--or-resume",
            help="Continue the run at --out, if there is one",
            rich_help_panel=OUT,
        ),
    ] = False,
    tensorboard: Annotated[
        bool,
        typer.Option(
            help="Write TensorBoard event files into the run's directory", rich_help_panel=OUT
        ),
    ] = True,
    report_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND:NAME",
            help="Trackers: wandb:NAME, mlflow:NAME, trackio:NAME, otel:NAME",
            rich_help_panel=OUT,
        ),
    ] = None,
    callbacks: Callbacks = None,
    prometheus: Prometheus = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the summary only", rich_help_panel=OUT)
    ] = False,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Number of runs, with a seed each from --seed on",
            rich_help_panel=WHAT,
        ),
    ] = None,
    jobs: Annotated[
        str,
        typer.Option(
            metavar="J", help="Runs at the same time, with --seeds", rich_help_panel=WHERE
        ),
    ] = "1",
    trust: Trust = None,
    debug: Debug = False,
    **options: str | None,
) -> None:
    """Train a policy on ENV; Ctrl-C saves and stops.

    ENV is a Gymnasium id such as CartPole-v1, module:id, module:callable, an env that runs
    thousands of streams at once (device:NAME, jax:LIBRARY/NAME), worlds that connect to the run
    (remote:tcp://HOST:PORT), or a task for a language model, such as sort. 'equipoise algorithms'
    lists the algorithms. The run writes one directory, which the other commands read.
    """
    with Starting(quiet=quiet) as start:
        with plain_errors("equipoise train", debug):
            phases.say("importing")
            from equipoise.programs.config_file import write_config
            from equipoise.programs.settings import at_least, convert

            where: On = convert(on, On, "--on")
            of_cluster = cluster_settings(address, cluster)
            beside = at_least(jobs, "--jobs")
            count = None if seeds is None else at_least(seeds, "--seeds")
            given, more = read(options)
            if where != "serial":
                from equipoise.runtime.process.forkserver import prepare

                # The server imports torch beside this process, which does so next.
                prepare(central=options["inference"] in ("central", "auto"))
            from equipoise import api
            from equipoise.api.training import (
                Order,
                asked_for,
                like_its_source,
                made_callbacks,
                run_of,
            )
            from equipoise.api.tuning import opened
            from equipoise.console.terminal import View
            from equipoise.record.paths import check_vacant
            from equipoise.record.prometheus import Endpoint, read_address
            from equipoise.run.governing import check_anywhere
            from equipoise.studies.settings import StudySettings

            all_settings = (*(settings or ()), *more)
            if policies:
                given["policies"] = policies
            if algorithm == NAME and given.get("dataset") is not None:
                if env is not None:
                    others = {
                        "--config": config,
                        "--policy": policies,
                        "--save-config": save_config,
                        "--dry-run": dry_run,
                        "--init-from": init_from,
                        "--or-resume": or_resume,
                        "--report-to": report_to,
                        "--callback": callbacks,
                        "--prometheus": prometheus,
                        "--seeds": seeds,
                    }
                    start.end()
                    fit(env, given, all_settings, out, others=others, quiet=quiet)
                    return
                if config is None:
                    env = str(given.pop("dataset"))
            program = program_of(
                env, algorithm, config, given, all_settings, recipe=recipe, quiet=quiet, trust=trust
            )
            asked = asked_for(given, all_settings)

            def tell(text: str) -> None:
                if asked or not quiet:
                    say(text, file=sys.stderr)

            if init_from is not None and config is None:
                keys = [setting.partition("=")[0] for setting in all_settings]
                program = like_its_source(program, init_from, keys, tell)

            if dry_run:
                if out is not None and not is_url(out) and not or_resume:
                    check_vacant(Path(out).expanduser())
                made_callbacks(callbacks or ())
                check_anywhere(program, where)
                print_plan(program, out)
                return
            if save_config is not None:
                write_config(program, save_config)
                print(f"wrote {save_config}; next: equipoise train --config {save_config}")
                return
            if count is not None:
                check_seeds(
                    prometheus=prometheus, callbacks=callbacks, or_resume=or_resume, out=out
                )
                study = StudySettings(
                    strategy="seeds",
                    confirm=0,
                    trials=count,
                    jobs=beside,
                    seed=program.schedule.seed,
                    on=where,
                    cluster=tuple(f"{key}={value}" for key, value in of_cluster.items()),
                    init_from="" if init_from is None else str(init_from.absolute()),
                    init_what=init_what,
                    tensorboard=tensorboard,
                    report_to=tuple(report_to or ()),
                )
                folder = opened(out, study, program, trust or (), asked=asked, tell=tell)
                start.end()
                sys.exit(carried_on_shown(folder, None, trust or (), quiet=quiet, command="train"))
            endpoint = None if prometheus is None else Endpoint(read_address(prometheus))
            order = Order(
                on=where,
                cluster=of_cluster,
                out=None if out is None else place(out),
                init_from=init_from,
                init_what=init_what,
                or_resume=or_resume,
                trust=trust or (),
                choices={},
                tensorboard=tensorboard,
                report_to=report_to or (),
                tell=tell,
                asked=asked,
                callbacks=made_callbacks(callbacks or ()),
            )
            try:
                run = run_of(program, order)
            except api.NothingToDo as done:
                say(str(done))
                sys.exit(0)
            view = View(run.program, on=run.on, quiet=quiet)
        code = show(run, view, "train", start, endpoint)
    sys.exit(code)


def program_of(
    env: str | None,
    algorithm: str | None,
    config: Path | None,
    given: Mapping[str, Any],
    settings: Sequence[str],
    *,
    recipe: bool,
    quiet: bool,
    trust: Sequence[str] | None,
) -> Program:
    """Return the program of ENV or of ``--config`` with the options that were given."""
    from equipoise import api
    from equipoise.console.aside import unheard
    from equipoise.tuning.sizing import fitted

    if config is not None:
        besides = {"ENV": env, "--algorithm": algorithm, "--policy": given.get("policies")}
        if got := ", ".join(name for name, value in besides.items() if value is not None):
            raise ValueError(
                f"--config says what is trained; expected nothing besides it for that, got {got}"
            )
        return api.configured(config, settings=settings, trust=trust or (), **given)
    if env is None:
        raise ValueError("must have ENV, such as CartPole-v1, or --config FILE, got neither")
    program = api.program(env, algorithm, settings=settings, recipe=recipe, **given)
    named = [*given, *(setting.partition("=")[0] for setting in settings)]
    with unheard():  # an env that is measured prints what it will print into logs/
        program, sizes = fitted(program, named, recipe=recipe)
    if sizes and not quiet:
        say(sizes, file=sys.stderr)
    return program


def print_plan(program: Program, out: str | None) -> None:
    """Print the whole Program as TOML, then what a run of it writes."""
    from equipoise.programs.config_file import as_toml

    print(as_toml(program))
    where = out or "runs/ENV-ALGORITHM-SEED-TIME"
    print(f"# A run writes into {where}:")
    for name, text in WRITTEN.items():
        print(f"#   {name:16} {text}")


WRITTEN = {
    "run.json": "the settings above and the machine",
    "spec.json": "all that playing its policies needs",
    "metrics.jsonl": "a report per line",
    "live.json": "the newest state, for 'watch'",
    "events.*": "TensorBoard, unless --no-tensorboard",
    "checkpoints/": "weights and state, for 'resume' and 'evaluate'",
    "completions.json": "answers of the last evaluation, on text",
    "capsules/": "failures of an env, for 'reproduce'",
    "logs/": "the output of each worker",
    "summary.json": "the result, at the end",
}
