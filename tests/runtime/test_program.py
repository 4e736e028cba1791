"""A program survives JSON, takes settings by type, and is refused whole with every reason."""

import json
import subprocess
import sys
import typing
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal, cast

import pytest

from equipoise import api
from equipoise.algorithms.ppo import PPO
from equipoise.facts import facts
from equipoise.hints import hint, nearest
from equipoise.plans.plan import plan_run
from equipoise.programs.fields import alter, rooms, valued
from equipoise.programs.program import (
    algorithm_class,
    algorithm_name,
    algorithm_names,
    from_json,
    to_json,
)
from equipoise.programs.refusals import check, check_read, check_resume
from equipoise.programs.settings import apply_settings, convert, whole
from equipoise.types import (
    Algorithm,
    EnvFactory,
    EnvSource,
    Frozen,
    Learns,
    Optimizer,
    Policy,
    PositiveFloat,
    Program,
    Range,
    RecordedSource,
)


@dataclass(frozen=True, kw_only=True)
class Toy(Algorithm):
    gamma: float = 0.99
    clip: float = 0.2
    use_gae: bool = True
    activation: Literal["tanh", "relu"] = "tanh"
    hidden: tuple[int, ...] = (64, 64)
    window: tuple[int, float] = (4, 0.5)
    burn_in: int | None = None
    note: str = ""

    def network(self, spec): ...
    def act(self, net, obs, first, state, *, explore, noise): ...
    def best(self, net, obs, first, state): ...
    def loss(self, net, target_net, batch, *, group, step, rng): ...


class Overridden(PPO):
    clip: float = 0.5  # without a decorator it stays what PPO says


class Undecorated(Toy):
    limit: ClassVar[int] = 4  # a class variable needs no decorator
    tricks: int = 3


@dataclass(frozen=True, kw_only=True)
class Unfinished(Algorithm):
    """Abstract: no run can use it."""


TOY = f"{__name__}:Toy"
RUN = ("source", "placement", "schedule", "evaluation")


def program(
    algorithm=None,
    *,
    unroll=32,
    batch=32,
    publish_every=1,
    optimizer: Any = None,
    env=None,
    **fields: Any,
) -> Program:
    policy = Policy(
        algorithm=algorithm or Toy(),
        optimizer=optimizer,
        unroll=unroll,
        batch=batch,
        publish_every=publish_every,
    )
    made = Program(
        source=EnvSource(env=env or EnvFactory(target="CartPole-v1")), policies={"main": policy}
    )
    return alter(made, **fields)


# --------------------------------------------------------------------------------------------- JSON


def test_json_there_and_back_is_the_same_program():
    given = program(
        Toy(
            gamma=0.5,
            hidden=(),
            burn_in=3,
            clip=float("inf"),
            activation="relu",
            note="none",
            minibatches=2,
        ),
        env=EnvFactory(
            target="module:make", kwargs={"gravity": 9.8, "nested": {"a": [1, None, True]}}
        ),
        actors=2,
        max_lag=None,
        stop_at=475.0,
        schedule_steps=7,
        seed=3,
    )
    text = json.dumps(to_json(given), allow_nan=False)
    again = from_json(json.loads(text))
    assert again == given
    assert isinstance(again.policies["main"].algorithm, Toy)
    assert json.loads(text)["policies"]["main"]["algorithm"]["name"] == TOY


def test_json_holds_every_field():
    data = to_json(program())
    assert set(data) == set(Program.__dataclass_fields__)
    assert set(data["policies"]["main"]["algorithm"]["fields"]) == {
        field.name for field in fields(Toy)
    }


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ["placement", "actorz"],
            1,
            r"program.placement: unknown key 'actorz'; did you mean 'actors'\?",
        ),
        (
            ["placement", "actors"],
            "two",
            "program.placement.actors: expected a whole number or auto, got 'two'",
        ),
        (
            ["placement", "actors"],
            True,
            "program.placement.actors: expected a whole number, got True",
        ),
        (
            ["placement", "actors"],
            1.5,
            "program.placement.actors: expected a whole number, got 1.5",
        ),
        (
            ["placement", "inference"],
            "locale",
            r"one of 'local', 'central' or auto, got 'locale' \(did you mean 'local'\?\)",
        ),
        (
            ["placement", "max_lag"],
            [],
            "program.placement.max_lag: expected a whole number or none, got \\[\\]",
        ),
        (
            ["source", "env", "targt"],
            "",
            r"program.source.env: unknown key 'targt'; did you mean 'target'\?",
        ),
        (["source", "env", "kwargs"], [], "program.source.env.kwargs: expected a JSON object"),
        (["policies"], [], "program.policies: expected a JSON object"),
        (
            ["policies", "main", "bach"],
            1,
            r"program.policies.main: unknown key 'bach'; did you mean 'batch'\?",
        ),
        (["policies", "main", "algorithm", "nam"], 1, r"did you mean 'name'\?"),
        (
            ["policies", "main", "algorithm", "name"],
            "ppoo",
            r"unknown algorithm 'ppoo'; did you mean 'ppo'\?",
        ),
        (
            ["policies", "main", "algorithm", "fields", "gama"],
            1,
            r"algorithm.fields: unknown key 'gama'; did you mean 'gamma'",
        ),
        (
            ["policies", "main", "algorithm", "fields", "gamma"],
            "x",
            "fields.gamma: expected a number, got 'x'",
        ),
        (
            ["policies", "main", "algorithm", "fields", "window"],
            [1],
            r"fields.window: expected 2 values .*, got \[1\]",
        ),
    ],
)
def test_json_that_is_wrong_is_refused_where_it_is_wrong(path, value, message):
    data = to_json(program())
    node = data
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    with pytest.raises(ValueError, match=message):
        from_json(data)


def test_json_of_recorded_rows_alone_is_read_back():
    given = program(dataset="d-v0", evaluate_episodes=0)
    assert given.source == RecordedSource(dataset="d-v0", env=EnvFactory(target="CartPole-v1"))
    for one in (given, replace(given, source=RecordedSource(dataset="d-v0"))):
        assert from_json(json.loads(json.dumps(to_json(one)))) == one
    with pytest.raises(ValueError, match="source.env: expected an env, got none"):
        replace(given, source=RecordedSource(dataset="d-v0")).env  # noqa: B018


def test_json_of_an_older_version_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match="got the settings of an older version; train again"):
        from_json({"env": {"target": "CartPole-v1"}, "policies": {}, "actors": 2})


def test_json_without_a_needed_key_is_refused():
    data = to_json(program())
    del data["policies"]["main"]["unroll"]
    with pytest.raises(ValueError, match=r"program.policies.main: .* got none named \['unroll'\]"):
        from_json(data)


def test_what_json_cannot_say_is_refused():
    for kwargs in ({"make": lambda: 1}, {"x": float("nan")}, {"x": float("inf")}, {"x": {1: 2}}):
        with pytest.raises(ValueError, match="env.*: expected a value that JSON can hold"):
            to_json(program(env=EnvFactory(target="A-v0", kwargs=kwargs)))
    with pytest.raises(
        ValueError, match=r"policies.main.algorithm.gamma: expected a value that JSON can hold"
    ):
        to_json(program(Toy(gamma=float("nan"))))


FLOATS = [
    f"{room}{name}"
    for room, cls in rooms(replay=True)
    for name, fact in facts(cls).items()
    if float in (fact.kind, *typing.get_args(fact.kind))
]


@pytest.mark.parametrize("key", FLOATS)
@pytest.mark.few(99)
def test_infinity_is_refused_by_name_or_comes_back_from_json(key: str) -> None:
    env, algorithm = ("Pendulum-v1", "sac") if key.startswith("replay.") else ("CartPole-v1", "ppo")
    refused, made = "", None
    try:
        made = api.program(env, algorithm, settings=[f"{key}=inf"], recipe=False)
    except ValueError as error:
        refused = str(error)
    if made is None:
        assert key.rpartition(".")[2] in refused, refused
    else:
        assert from_json(json.loads(json.dumps(to_json(made), allow_nan=False))) == made


# --------------------------------------------------------------------------------------- algorithms


def test_the_built_in_algorithms_are_the_files_of_their_room():
    assert {"ppo", "impala"} <= set(algorithm_names())
    assert not any(name.startswith("_") for name in algorithm_names())
    for name in algorithm_names():
        cls = algorithm_class(name)
        assert issubclass(cls, Learns)
        assert algorithm_name(cls) == name
        given = program(cls())
        assert from_json(to_json(given)) == given
        assert to_json(given)["policies"]["main"]["algorithm"]["name"] == name


def test_naming_the_algorithms_imports_none():
    code = (
        "import sys; from equipoise.programs.program import algorithm_names; assert 'ppo' in "
        "algorithm_names();"
        "assert not [m for m in sys.modules if m.startswith('equipoise.algorithms.') or m == "
        "'torch'], sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_algorithm_of_ones_own():
    assert algorithm_class(TOY) is Toy
    assert algorithm_name(Toy) == TOY


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("impla", r"unknown algorithm 'impla'; did you mean 'impala'\?"),
        ("no_such_module:X", "expected an importable module, got No module named 'no_such_module'"),
        (f"{__name__}:Toyy", r"has no 'Toyy'; did you mean 'Toy'\?"),
        (
            f"{__name__}:Unfinished",
            "expected a concrete subclass .* without act, best, loss, network",
        ),
        ("json:loads", "expected a concrete subclass"),
        (
            f"{__name__}:Undecorated",
            r"expected @dataclass\(frozen=True, kw_only=True\) above the class, .* so tricks would",
        ),
        (f"{__name__}:Overridden", "got none, so clip would have no effect"),
        ("../lib/mine.py:Mine", "Run the command in the folder of the file, and write mine:Mine."),
        (
            "my_package/mine.py:Mine",
            "Write the module as an import does: my_package.mine:Mine. Modules are looked for in",
        ),
        ("./mine.py:Mine", "got a path. Write the module as an import does: mine:Mine."),
        (
            f"{__name__}:TOY",
            "expected a concrete subclass of equipoise.types.Algorithm, got '.*:Toy'$",
        ),
    ],
)
def test_an_unknown_algorithm_names_the_nearest(name, message):
    with pytest.raises(ValueError, match=message):
        algorithm_class(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nclass A(:\n", r"SyntaxError: .*_algorithm.py, line 2\)"),
        ("\n\n1 / 0\n", r"ZeroDivisionError: .*_algorithm.py, line 3\)"),
    ],
)
def test_an_algorithm_whose_module_fails_is_told_with_its_line(text, said, tmp_path, monkeypatch):
    name = f"broken_{len(text)}_algorithm"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError,
        match=f"algorithm '{name}:A': expected a module that can be imported, got {said}",
    ):
        algorithm_class(f"{name}:A")


@dataclass(frozen=True)
class Marked(Toy):
    _: KW_ONLY  # no setting
    tricks: int = 3


def test_a_mark_in_a_dataclass_is_no_setting():
    made = api.program("CartPole-v1", f"{__name__}:Marked")
    assert cast("Marked", made.policies["main"].algorithm).tricks == 3


@dataclass(frozen=True, kw_only=True)
class Required(Toy):
    tricks: int


def test_a_field_without_a_default_is_refused():
    with pytest.raises(ValueError, match="a default for each field, got none for tricks"):
        api.program("CartPole-v1", f"{__name__}:Required")


def test_a_class_that_no_import_reaches_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Local(Toy):
        pass

    with pytest.raises(ValueError, match="at the top of a module"):
        to_json(program(Local()))


# ----------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("setting", "where", "value"),
    [
        ("algorithm.gamma=0.98", "algorithm.gamma", 0.98),
        ("algorithm.gamma=1", "algorithm.gamma", 1.0),
        ("optimizer.learning_rate=3e-4", "optimizer.learning_rate", 3e-4),
        ("optimizer.name=AdamW", "optimizer.name", "adamw"),
        ("optimizer.schedule=cosine", "optimizer.schedule", "cosine"),
        ("optimizer.betas=0.8,0.99", "optimizer.betas", (0.8, 0.99)),
        ("optimizer.rates.actor=1e-4", "optimizer.rates", {"actor": 1e-4}),
        ('optimizer.rates={"actor": 1}', "optimizer.rates", {"actor": 1.0}),
        ("algorithm.clip=inf", "algorithm.clip", float("inf")),
        ("algorithm.use_gae=false", "algorithm.use_gae", False),
        ("algorithm.use_gae=Yes", "algorithm.use_gae", True),
        ("algorithm.activation=relu", "algorithm.activation", "relu"),
        ("algorithm.hidden=(128,128)", "algorithm.hidden", (128, 128)),
        ("algorithm.hidden=128, 64", "algorithm.hidden", (128, 64)),
        ("algorithm.hidden=[32]", "algorithm.hidden", (32,)),
        ("algorithm.hidden=()", "algorithm.hidden", ()),
        ("algorithm.window=8,0.25", "algorithm.window", (8, 0.25)),
        ("algorithm.burn_in=none", "algorithm.burn_in", None),
        ("algorithm.burn_in=5", "algorithm.burn_in", 5),
        ("algorithm.note=a=b", "algorithm.note", "a=b"),
        ("algorithm.note=none", "algorithm.note", "none"),
        ("policy.unroll=64", "policy.unroll", 64),
        ("unroll=64", "policy.unroll", 64),
        ("policy.publish_every=2", "policy.publish_every", 2),
        ("batch=128", "policy.batch", 128),
        ("placement.max_lag=none", "placement.max_lag", None),
        ("placement.max_lag=3", "placement.max_lag", 3),
        ("schedule.steps=2.3M", "schedule.steps", 2_300_000),
        ("schedule.steps=500k", "schedule.steps", 500_000),
        ("schedule.steps=1e6", "schedule.steps", 1_000_000),
        ("schedule.steps=500_000", "schedule.steps", 500_000),
        ("evaluation.stop_at=-95", "evaluation.stop_at", -95.0),
        ("placement.device=cuda:1", "placement.device", "cuda:1"),
        ("env.gravity=9.8", "env.gravity", 9.8),
        ("env.render=none", "env.render", None),
        ("env.hard=True", "env.hard", True),
        ("env.map=4x4", "env.map", "4x4"),
        ("env.sizes=[1, 2]", "env.sizes", [1, 2]),
    ],
)
def test_a_setting_is_read_by_the_type_of_its_field(setting, where, value):
    given = program()
    made = apply_settings(given, [setting])
    policy = made.policies["main"]
    room, _, name = where.rpartition(".")
    owner = {
        "algorithm": policy.algorithm,
        "optimizer": policy.optimizer,
        "policy": policy,
        **{part: getattr(made, part) for part in RUN},
    }.get(room)
    got = made.env.kwargs[name] if room == "env" else getattr(owner, name)
    assert got == value
    assert type(got) is type(value)
    # and nothing else has changed
    if room == "env":
        assert alter(made, env=given.env) == given
    elif room in RUN:
        assert (
            replace(made, **{room: replace(getattr(made, room), **{name: valued(given, where)})})
            == given
        )
    else:
        assert replace(made, policies=given.policies) == given
        assert [
            f for f in Toy.__dataclass_fields__ if getattr(policy.algorithm, f) != getattr(Toy(), f)
        ] in ([name], [])


def test_the_rates_of_groups_come_together_and_return_from_json():
    made = apply_settings(
        program(),
        ["optimizer.rates.actor=1e-4", "optimizer.rates.critic=3e-4", "optimizer.rates.actor=2e-4"],
    )
    assert made.policies["main"].optimizer.rates == {"actor": 2e-4, "critic": 3e-4}
    assert from_json(json.loads(json.dumps(to_json(made)))) == made
    with pytest.raises(ValueError, match=r"optimizer\.rates\.actor: expected a number, got 'fast'"):
        apply_settings(made, ["optimizer.rates.actor=fast"])


def test_the_rate_of_a_group_that_there_is_not_is_refused_before_the_run():
    given = api.program("Pendulum-v1", "sac", settings=["optimizer.rates.acto=1e-4"])
    with pytest.raises(
        ValueError,
        match=r"^optimizer\.rates\.acto: expected a group of the algorithm; did you mean 'actor'\?",
    ):
        plan_run(given)


def test_a_policy_without_an_optimizer_has_that_of_its_algorithm():
    made = api.program("Pendulum-v1", "sac", recipe=False).policies["main"]
    assert made.optimizer == made.algorithm.default_optimizer != Optimizer()
    two = api.program(
        "CartPole-v1", "ppo", policies={"a": "ppo", "b": "a3c"}, route={"x": "a", "y": "b"}
    )
    assert [two.policies[name].optimizer.name for name in "ab"] == ["adam", "rmsprop"]
    one = apply_settings(two, ["policies.b.optimizer.learning_rate=0.5", "optimizer.epsilon=0.25"])
    assert [one.policies[name].optimizer.learning_rate for name in "ab"] == [1e-3, 0.5]
    assert [one.policies[name].optimizer.epsilon for name in "ab"] == [0.25, 0.25]


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("algorithm.learning_rate=1", "optimizer.learning_rate"),
        ("algorithm.max_grad_norm=1", "optimizer.max_grad_norm"),
        ("optimizer.lerning_rate=1", "optimizer.learning_rate"),
    ],
)
def test_a_setting_in_the_wrong_room_is_told_the_right_one(was, now):
    with pytest.raises(ValueError, match=f"unknown setting '{was[:-2]}'; did you mean '{now}'"):
        apply_settings(program(), [was])


def test_settings_apply_in_order_and_to_a_copy():
    given = program(env=EnvFactory(target="A-v0", kwargs={"kept": 1}))
    made = apply_settings(
        given,
        [
            "schedule.seed=1",
            "env.a=1",
            "algorithm.gamma=0.1",
            "schedule.seed=2",
            "batch=64",
            "algorithm.clip=0.3",
        ],
    )
    assert (made.schedule.seed, made.policies["main"].batch) == (2, 64)
    assert made.policies["main"].algorithm == Toy(gamma=0.1, clip=0.3)
    assert made.env.kwargs == {"kept": 1, "a": 1}
    assert given == program(env=EnvFactory(target="A-v0", kwargs={"kept": 1}))
    assert apply_settings(given, []) == given


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("algorithm.gama=1", r"unknown setting 'algorithm.gama'; did you mean 'algorithm.gamma'\?"),
        ("gamma=0.9", r"unknown setting 'gamma'; did you mean 'algorithm.gamma'\?"),
        ("algorithm.unroll=1", r"did you mean 'policy.unroll'\?"),
        ("actor=2", r"did you mean 'placement.actors'\?"),
        (
            "algorithm=ppo",
            "unknown setting 'algorithm'; a run begins with its algorithm and keeps it: "
            "--algorithm NAME",
        ),
        ("actors=2", r"unknown setting 'actors'; it is 'placement.actors'"),
        ("evaluate_every=2", r"unknown setting 'evaluate_every'; it is 'evaluation.every'"),
        ("max-lag=2", r"it is 'placement.max_lag'"),
        ("policies=2", "unknown setting 'policies'"),
        ("algorithm.=2", "unknown setting"),
        ("env.=2", "unknown setting"),
        ("gamma", r"setting 'gamma': expected KEY=VALUE"),
        ("=3", "expected KEY=VALUE"),
        ("algorithm.gamma=high", r"algorithm.gamma: expected a number, got 'high'"),
        ("algorithm.gamma=", r"algorithm.gamma: expected a number, got ''"),
        ("algorithm.gamma=nan", "algorithm.gamma: expected a number, got 'nan'"),
        ("unroll=1.5", "unroll: expected a whole number, got '1.5'"),
        ("schedule.steps=inf", "schedule.steps: expected a whole number, got 'inf'"),
        ("schedule.steps=1e999999999", "schedule.steps: expected a whole number"),
        ("schedule.steps=k", "schedule.steps: expected a whole number, got 'k'"),
        ("algorithm.use_gae=maybe", "algorithm.use_gae: expected true or false, got 'maybe'"),
        (
            "algorithm.activation=rel",
            r"expected one of 'tanh', 'relu', got 'rel' \(did you mean 'relu'\?\)",
        ),
        (
            "algorithm.hidden=64,big",
            r"algorithm.hidden: expected a list of \(a whole number\), such as 64,64, got '64,big'",
        ),
        (
            "algorithm.window=1,2,3",
            r"expected 2 values \(a whole number, a number\) .*, got '1,2,3' \(3 values\)",
        ),
        (
            "schedule.steps=2 gigs",
            r"schedule.steps: expected a whole number, got '2 gigs' \(64, 500k, 1M, 500MiB and 2GB "
            r"are some\)",
        ),
        (
            "placement.max_lag=some",
            "placement.max_lag: expected a whole number or none, got 'some'",
        ),
    ],
)
def test_a_setting_that_is_wrong_says_what_is_right(setting, message):
    with pytest.raises(ValueError, match=message):
        apply_settings(program(), [setting])


def test_field_types_that_text_cannot_say_are_refused():
    with pytest.raises(ValueError, match="cannot be set from text or JSON"):
        convert("1", set, "algorithm.x")


BEYOND = 10**400  # no float is as large
WITHOUT_END = '{"a":' * 100_000


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (float, BEYOND),
        (float | None, -BEYOND),
        (tuple[float, ...], [1.0, BEYOND]),
        (Mapping[str, float], {"a": BEYOND}),
        (Mapping[str, float], WITHOUT_END),
    ],
)
def test_numbers_beyond_all_floats_and_brackets_without_end_are_refused_in_a_line(kind, value):
    with pytest.raises(ValueError, match=r"^x: expected .*, got") as refused:
        convert(value, kind, "x")
    assert len(str(refused.value)) < 400


def test_brackets_without_end_are_a_text_if_texts_are_allowed():
    assert convert(WITHOUT_END, Any, "x") == WITHOUT_END
    assert convert(WITHOUT_END, tuple[str, ...], "x") == (WITHOUT_END,)


def test_none_comes_before_text():
    assert convert("none", str | None, "x") is None
    assert convert("some", str | None, "x") == "some"


def test_the_nearest_name_looks_at_the_whole_and_at_its_last_part():
    assert nearest("gamma", ["batch", "algorithm.gamma", "game"]) == "algorithm.gamma"
    assert nearest("CartPole", ["MountainCar-v0", "CartPole-v1"]) == "CartPole-v1"
    assert nearest("x", []) is None


def test_whole_numbers_that_floats_would_miss():
    assert whole("2.3M") == 2_300_000
    assert (whole("2GB"), whole("1.5kB"), whole("500mb"), whole("1TB")) == (
        2 * 10**9,
        1500,
        5 * 10**8,
        10**12,
    )
    assert (whole("2GiB"), whole("1.5kib"), whole("512MiB")) == (2**31, 1536, 2**29)
    assert whole("9007199254740993") == 2**53 + 1


# -------------------------------------------------------------------------------------------- check


@dataclass(frozen=True, kw_only=True)
class Ranged(Toy):
    """An algorithm of one's own says its ranges beside its fields."""

    heat: PositiveFloat | None = None
    tilt: Annotated[float, Range(-1, 2)] = -1.0


GOOD = {
    "ranges": {"algorithm": Ranged(heat=0.1, tilt=2)},
    "lockstep": {},
    "four actors": {"actors": 4, "batch": 64, "envs_per_actor": 16},
    "more windows than streams": {"actors": 1, "batch": 64},
    "streams that fit by lag": {"actors": 4, "batch": 16, "max_lag": 3},
    "free-running": {"actors": 40, "batch": 16, "max_lag": None},
    "old weights, without a bound": {"max_lag": None, "publish_every": 2},
    "cuda": {"device": "cuda:3"},
    "no evaluation": {"evaluate_episodes": 0},
    "minibatches": {"algorithm": Toy(minibatches=1024)},
}


@pytest.mark.parametrize("case", GOOD)
def test_programs_that_can_work(case):
    fields = dict(GOOD[case])
    check(program(fields.pop("algorithm", None), **fields))


BAD: Any = {
    "actors": ({"actors": 0}, "actors: expected at least 1, got 0"),
    "unroll": ({"unroll": 0}, "unroll: expected at least 1, got 0"),
    "steps": ({"steps": 0}, "steps: expected at least 1, got 0"),
    "schedule": ({"schedule_steps": 0}, "schedule_steps: expected at least 1, got 0"),
    "threads": ({"threads": 0}, "threads: expected at least 1"),
    "lag": ({"max_lag": -1}, "max_lag: expected at least 0, got -1"),
    "seed": ({"seed": -1}, "seed: expected at least 0, got -1"),
    "learners and actors": (
        {"learners": 2},
        r"learners: expected a divisor of the 1 actors.* got 2; 1 would work, or --actors 2",
    ),
    "learners and blocks": (
        {"learners": 3, "actors": 6, "batch": 64, "max_lag": 2},
        r"a divisor of the 4 blocks of a batch of 64 \(16 envs each\), .*, got 3; 2 would work",
    ),
    "learners, between": (
        {"learners": 3, "actors": 8, "batch": 128},
        r"got 3; 2 and 4 would work$",  # more actors alone are not enough
    ),
    "learners, one part": (
        {"learners": 3, "actors": 8, "batch": 96, "max_lag": 2},
        "got 3; 2 would work, or --actors 9",
    ),
    "learners on one device": (
        {"learners": 2, "actors": 2, "batch": 32, "device": "cuda:1"},
        "placement.device: expected cuda with 2 learners, which take cuda:0 and so on, got "
        "'cuda:1'",
    ),
    "device": ({"device": "gpu"}, "device: expected cpu, cuda or cuda:N, got 'gpu'"),
    "epochs": ({"algorithm": Toy(epochs=0)}, "algorithm.epochs: expected at least 1"),
    "gamma": ({"algorithm": PPO(gamma=7.0)}, "algorithm.gamma: expected 0 to 1, got 7.0"),
    "clip": ({"algorithm": PPO(clip=-0.1)}, "algorithm.clip: expected at least 0, got -0.1"),
    "hidden": ({"algorithm": PPO(hidden=(64, 0))}, "algorithm.hidden: expected at least 1, got 0"),
    "a range of one's own": (
        {"algorithm": Ranged(heat=0.0)},
        "algorithm.heat: expected more than 0, got 0.0",
    ),
    "the end of a range": (
        {"algorithm": Ranged(tilt=2.5)},
        "algorithm.tilt: expected -1 to 2, got 2.5",
    ),
    "deadline": ({"deadline_s": 0.0}, "deadline_s: expected more than 0, got 0.0"),
    "one name": (
        {"metrics": "won"},
        r"source.metrics: expected a tuple of names, such as \('success',\), got the text 'won'",
    ),
    "evaluate every": ({"evaluate_every": 0}, "evaluation.every: expected at least 1, got 0"),
    "learning rate": (
        {"optimizer": Optimizer(learning_rate=float("nan"))},
        "optimizer.learning_rate: expected 0 to 10, got nan",
    ),
    "a group's rate": (
        {"optimizer": Optimizer(rates={"all": -1.0})},
        "optimizer.rates: expected 0 to 10, got -1.0",
    ),
    "betas": (
        {"optimizer": Optimizer(betas=(0.9, 1.5))},
        "optimizer.betas: expected 0 to 1, got 1.5",
    ),
    "optimizer": (
        {"optimizer": Optimizer(name=cast(Any, "sgd"))},
        "optimizer.name: expected one of adam, adamw, rmsprop, got 'sgd'",
    ),
    "schedule of rates": (
        {"optimizer": Optimizer(schedule=cast(Any, "step"))},
        "optimizer.schedule: expected one of linear, const",
    ),
    "split unrolls, above": (
        {"batch": 40},
        "batch: expected a multiple of envs_per_actor=16.* got 40; the nearest is 48",
    ),
    "split unrolls, below": ({"batch": 39}, "got 39; the nearest is 32"),
    "split unrolls, small": ({"batch": 3}, "got 3; the nearest is 16"),
    "idle actors": (
        {"actors": 3},
        r"all 48 streams \(3 actors x 16\) .* = 32 slots.*use batch=48, actors=2 or max_lag=1$",
    ),
    "idle actors, with lag": (
        {"actors": 5, "max_lag": 1},
        "= 64 slots.*use batch=48, actors=4 or max_lag=2$",
    ),
    "minibatches": (
        {"algorithm": Toy(minibatches=5)},
        r"divisor of the 1024 rows .*, got 5; the nearest below is 4",
    ),
    "old weights": (
        {"publish_every": 2},
        r"publish_every: expected 1 with a bounded max_lag \(0\), got 2",
    ),
    "old weights, with lag": (
        {"max_lag": 1, "publish_every": 2},
        r"expected 1 with a bounded max_lag \(1\), got 2",
    ),
    "no env": ({"env": EnvFactory(target=" ")}, "env: expected a Gymnasium id"),
    "env closure": (
        {"env": EnvFactory(target="A-v0", kwargs={"f": print})},
        "env.f: expected a value that JSON can hold",
    ),
    "stop without evaluation": (
        {"stop_at": 1.0, "evaluate_episodes": 0},
        "evaluation.episodes of at least 1",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_programs_that_cannot_work(case):
    fields, message = dict(BAD[case][0]), BAD[case][1]
    with pytest.raises(ValueError, match=message) as caught:
        check(program(fields.pop("algorithm", None), **fields))
    assert "\n" not in str(caught.value)


def test_every_suggestion_of_idle_actors_works():
    for change in ({"batch": 48}, {"actors": 2}, {"max_lag": 1}):
        check(program(**{"actors": 3, **change}))


def test_all_problems_come_at_once():
    with pytest.raises(ValueError, match="^4 settings cannot work:") as caught:
        check(program(actors=0, unroll=0, device="tpu", seed=-4))
    lines = str(caught.value).splitlines()[1:]
    assert [line.strip().partition(":")[0] for line in lines] == [
        "placement.actors",
        "schedule.seed",
        "placement.device",
        "unroll",
    ]


def test_several_policies_are_read_back_and_checked_together():
    one = program().policies["main"]
    given = replace(
        program(),
        policies={"a": one, "b": one, "old": Frozen(of="a", every=3)},
        route={"x_*": "a", "y": "old"},
    )
    check(given)
    assert from_json(json.loads(json.dumps(to_json(given)))) == given
    wrong = {"a": one, "b": replace(one, batch=16), "old": Frozen(of="old", every=0), "a b": one}
    with pytest.raises(ValueError, match="^5 settings cannot work:") as caught:
        check(replace(given, policies=wrong, route={"y": "c"}))
    for said in (
        "names of letters",
        "old.every: expected at least 1",
        "old.of: expected",
        "b.batch: expected 32",
        "route.y: ex",
    ):
        assert said in str(caught.value)
    with pytest.raises(ValueError, match="policies: expected one that learns"):
        check(replace(given, policies={"old": Frozen(of="old")}, route={}))


def test_what_changed_is_named_by_policy():
    one = program().policies["main"]
    given = replace(program(), policies={"a": one, "old": Frozen(of="a")}, route={"y": "old"})
    other = apply_settings(given, ["policies.a.algorithm.gamma=0.5"])
    assert check_resume(given, other) == {"policies.a.algorithm.gamma": [one.algorithm.gamma, 0.5]}
    for setting in ("policies.old.pool=2", "policies.a.unroll=7", "route.y=a"):
        with pytest.raises(
            ValueError, match=f"cannot change {setting.partition('=')[0].partition('.y')[0]}"
        ):
            check_resume(given, apply_settings(given, [setting]))


def test_a_resume_refuses_to_change_what_nothing_reads() -> None:
    given = program()
    for setting, why in (
        ("algorithm.tau=0.5", "algorithm.tau, since there is no target network"),
        ("optimizer.decay=0.5", "optimizer.decay, since optimizer.name is adam"),
    ):
        with pytest.raises(ValueError, match=f"expected settings that change something, got {why}"):
            check_resume(given, apply_settings(given, [setting]))
    rms = apply_settings(given, ["optimizer.name=rmsprop"])
    assert "optimizer.decay" in check_resume(rms, apply_settings(rms, ["optimizer.decay=0.5"]))
    assert "optimizer.rates" in check_resume(
        given, apply_settings(given, ["optimizer.rates.all=0.5"])
    )


UNREAD = {
    "replay.alpha=0.7": "nothing is prioritized",
    "replay.beta=0.4": "nothing is prioritized",
    "replay.selector=fifo replay.updates=1 replay.epsilon=0.1": r"nothing is prioritized "
    r"\(replay.selector=fifo",
    "replay.strategy=final": "no goal becomes another",
    "replay.dataset_share=0.3": "there is no data set",
    "replay.memory=1GiB replay.capacity=1M": r"as many rows are kept as fit "
    r"\(replay.memory=1073741824\)",
    "source.dataset=d-v0 replay.starts_at=5": "there is no live experience",
    "algorithm.kappa=0.5": "algorithm.distribution is none",
    "algorithm.distribution=c51 algorithm.error=mse": "algorithm.distribution is c51",
    "algorithm.epsilon_steps=0 algorithm.epsilon_start=0.5": "epsilon does not change",
}


@pytest.mark.parametrize("settings", UNREAD)
def test_a_new_run_refuses_what_nothing_reads(settings: str) -> None:
    words = settings.split()
    with pytest.raises(
        ValueError,
        match=f"^expected settings that change something, got .*, since {UNREAD[settings]}",
    ):
        api.program("CartPole-v1", "dqn", settings=words)
    if len(words) > 1:
        api.program("CartPole-v1", "dqn", settings=words[:-1])


@pytest.mark.parametrize(
    ("algorithm", "setting", "reader"),
    [
        ("sac", "algorithm.target_entropy=1", "algorithm.learn_temperature=false"),
        ("td3", "algorithm.noise_clip=1", "algorithm.target_noise=0"),
        ("ppo", "algorithm.clip_obs=5", "algorithm.normalize_obs=false"),
    ],
)
def test_what_an_algorithm_does_not_read_is_its_own_to_say(
    algorithm: str, setting: str, reader: str
) -> None:
    with pytest.raises(
        ValueError, match=f"change something, got {setting.partition('=')[0]}, since"
    ):
        api.program("Pendulum-v1", algorithm, settings=[setting, reader])


def test_every_field_that_may_be_unread_is_one() -> None:
    for name in algorithm_names():
        cls = algorithm_class(name)
        for fact in facts(cls).values():
            assert all(hasattr(cls(), read.setting) for read in fact.reads)


def test_what_one_of_several_policies_reads_is_read() -> None:
    given = api.program("CartPole-v1", "ppo", recipe=False)
    one: Any = given.policies["main"]
    rms = replace(one, optimizer=replace(one.optimizer, name="rmsprop"))
    both = replace(given, policies={"a": one, "b": rms})
    check_read(both, ["optimizer.decay", "policies.b.optimizer.decay"])
    with pytest.raises(
        ValueError,
        match=r"got policies\.a\.optimizer\.decay, since policies\.a\.optimizer\.name is adam",
    ):
        check_read(both, ["policies.a.optimizer.decay"])


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_the_rows_of_an_item_stay_as_a_replay_was_saved_of_them(name: str) -> None:
    given = api.program("CartPole-v1", name)
    with pytest.raises(
        ValueError,
        match=r"cannot change algorithm\.n_step \(1 -> 3\)\. Can change: .*--init-from DIR",
    ):
        check_resume(given, apply_settings(given, ["algorithm.n_step=3", "algorithm.gamma=0.9"]))
    assert check_resume(given, apply_settings(given, ["algorithm.gamma=0.9"]))


def test_cloning_takes_a_data_set() -> None:
    with pytest.raises(
        ValueError, match=r"source\.dataset: expected a data set, which BC learns from, got none"
    ):
        api.program("CartPole-v1", "bc")


def test_a_range_is_no_part_of_the_type_that_a_setting_is_read_by():
    made = apply_settings(program(Ranged()), ["algorithm.heat=0.5", "algorithm.tilt=1e0"])
    assert made.policies["main"].algorithm == Ranged(heat=0.5, tilt=1.0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ppo2", "; did you mean 'ppo'? (valid: impala, ppo)"),
        ("sac", "; valid: impala, ppo."),
        ("IMPALA", "; did you mean 'impala'? (valid: impala, ppo)"),
        ("", "; valid: impala, ppo."),
    ],
)
def test_only_a_near_name_is_said_to_be_meant(name, said):
    assert hint(name, ["ppo", "impala"]) == said


ANY = ("log_std", "sde_log_std", "v_min", "v_max")  # fields of which every number makes sense


@pytest.mark.parametrize("name", algorithm_names())
def test_no_algorithm_loses_the_range_of_a_field(name):
    """An annotation of one's own takes the place of the base's, and its range with it."""
    base, mine = facts(Algorithm), facts(algorithm_class(name))
    assert not [field for field in base if base[field].limits and not mine[field].limits]
    numbers = {field for field, fact in mine.items() if fact.kind in (int, float)}
    assert not [field for field in numbers if field not in ANY and not mine[field].limits], (
        "without a range"
    )
    assert not [field for field, fact in mine.items() if not fact.help], "without help"


def test_a_target_network_that_nobody_reads_is_refused():
    with pytest.raises(
        ValueError,
        match=r"algorithm.target_every: expected 0, since Toy has no target network, got 10",
    ):
        check(apply_settings(program(), ["algorithm.target_every=10"]))


def test_each_learner_has_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(
        ValueError,
        match="placement.learners: expected at most 1, as many as CUDA devices, .* got 2",
    ):
        plan_run(program(learners=2, actors=2, batch=32, device="cuda"))


@pytest.mark.parametrize(("learners", "most"), [(1, 8), (2, 4)])
def test_a_recurrent_network_has_as_many_windows_as_minibatches(learners: int, most: int) -> None:
    """It is said before a worker begins."""
    made = program(
        PPO(core="lstm", minibatches=2 * most),
        learners=learners,
        actors=2,
        envs_per_actor=4,
        batch=8,
        unroll=16,
    )
    with pytest.raises(
        ValueError, match=f"algorithm.minibatches: expected at most {most}, .* got {2 * most}"
    ):
        plan_run(made)


def test_weights_of_a_data_set_beside_the_rows_of_several_learners_are_refused() -> None:
    settings = ["replay.selector=prioritized", "replay.dataset=a-data-set"]
    with pytest.raises(
        ValueError,
        match="replay.selector: expected uniform for a replay with a data set that 2 learners",
    ):
        api.program("CartPole-v1", "dqn", recipe=False, learners=2, actors=2, settings=settings)
