"""A verdict is a pure function of shares; here is what each picture must be called, and what must
be advised.
"""

from dataclasses import replace

import pytest

from equipoise.balance.shares import STATES, Shares, add
from equipoise.balance.verdict import Setup, Verdict
from equipoise.balance.verdict import verdict as verdict_of


def shares(
    worked=0.0, preempted=0.0, starved=0.0, blocked=0.0, asleep=0.0, done=0.0, counts=None, **parts
):
    return Shares(
        worked=worked,
        preempted=preempted,
        starved=starved,
        blocked=blocked,
        asleep=asleep,
        done=done,
        counts=counts or {},
        parts={name.replace("_", "-"): seconds for name, seconds in parts.items()},
    )


SIDES = {"actor": "sampling", "inference": "sampling", "learner": "learning", "shard": "keeping"}


def verdict(balance, cause=None, advice=None, **setup):
    """The sentence on workers whose names say what they are."""

    def placed(name, of):
        kind = name.split()[0]
        return replace(of, kind=kind, side=SIDES.get(kind, "beside"), serves=kind == "inference")

    placed_balance = {name: placed(name, of) for name, of in balance.items()}
    return verdict_of(placed_balance, Setup(**setup), cause=cause, advice=advice).sentence


BUSY = shares(worked=10)
CASES = {
    # name: (actors, learner, keywords, the verdict's first word, what else it must say)
    "the learner waits": (
        [BUSY, BUSY],
        shares(worked=3.8, starved=6.2),
        {},
        "Sampling-bound",
        ["62 %", "add actors"],
    ),
    "the learner waits, all cores have an actor": (
        [BUSY, BUSY],
        shares(worked=5, starved=5),
        {"cores": 2},
        "Sampling-bound",
        ["50 %", "add envs per actor", "2 actors on 2 cores"],
    ),
    "the learner waits, a core is free": (
        [BUSY],
        shares(worked=5, starved=5),
        {"cores": 2},
        "Sampling-bound",
        ["add actors"],
    ),
    "the learner waits for actors that wait for envs": (
        [shares(worked=6, starved=4)],
        shares(worked=5, starved=5),
        {},
        "Sampling-bound",
        ["50 %", "40 % for their envs", "faster env"],
    ),
    "the learner waits for actors whose envs sleep": (
        [shares(worked=10, asleep=8)] * 2,
        shares(worked=5, starved=5),
        {"cores": 2},
        "Sampling-bound",
        ["80 % for their envs", "faster env or more actors"],
    ),
    "the others wait for one actor": (
        [
            shares(worked=10, done=10),
            shares(worked=2, blocked=8, done=30),
            shares(worked=2, blocked=8, done=30),
        ],
        shares(worked=2, starved=8),
        {"max_lag": 1},
        "Straggler",
        [
            "actor 0 takes 15.0 times as long",
            "wait 53 %",
            "see what slows actor 0, or use --max-lag none",
        ],
    ),
    "one actor is slow, and nobody waits for it": (
        [shares(worked=10, done=10), shares(worked=10, done=100), shares(worked=10, done=100)],
        shares(worked=2, starved=8),
        {"max_lag": None},
        "Sampling-bound",
        ["add actors"],
    ),
    "the actors wait for updates that are paid for": (
        [shares(worked=4, blocked=6)],
        shares(worked=10, insert=4.9),
        {"max_lag": None, "paid": 32},
        "Limiter-bound",
        ["60 %", "behind with the 32 updates", "use fewer replay.updates"],
    ),
    "the actors wait for the one update that is paid for": (
        [shares(worked=4, blocked=6)],
        shares(worked=10),
        {"max_lag": 1, "paid": 1},
        "Limiter-bound",
        [
            "behind with the update that each round",
            "; use more learner threads or a faster device.",
        ],
    ),
    "the actors wait for a learner that writes their rows": (
        [shares(worked=4, blocked=6)],
        shares(worked=9, starved=1, insert=4.5),
        {"max_lag": None, "paid": 32},
        "Learning-bound",
        ["60 %", "45 % of its time goes into writing", "longer unrolls"],
    ),
    "no rows, though there is a replay": (
        [BUSY],
        shares(worked=5, starved=5),
        {"paid": 32},
        "Sampling-bound",
        ["50 %"],
    ),
    "the actors wait": (
        [shares(worked=4, blocked=6)],
        shares(worked=10),
        {},
        "Learning-bound",
        ["60 %", "fewer actors"],
    ),
    "one of two actors waits": (
        [BUSY, shares(worked=4, blocked=6)],
        BUSY,
        {},
        "Learning-bound",
        ["30 %"],
    ),
    "both wait in turn": (
        [shares(worked=6, blocked=4)],
        shares(worked=4, starved=6),
        {"max_lag": 0},
        "Lockstep",
        ["60 %", "40 %", "raise --max-lag to overlap"],
    ),
    "both wait though lag is allowed": (
        [shares(worked=6, blocked=4)],
        shares(worked=4, starved=6),
        {"max_lag": 2},
        "Uneven",
        ["--max-lag above 2"],
    ),
    "both wait though nothing bounds the lag": (
        [shares(worked=6, blocked=4)],
        shares(worked=4, starved=6),
        {"max_lag": None},
        "Uneven",
        ["smaller batches"],
    ),
    "too few cores": (
        [shares(worked=6, preempted=4)] * 4,
        shares(worked=7, preempted=1, starved=2),
        {"cores": 2},
        "CPU-bound",
        ["5 workers share 2 cores", "40 %"],
    ),
    "cores that others have": (
        [shares(worked=2, preempted=5, blocked=3)] * 2,
        shares(worked=3, preempted=4, starved=3),
        {"cores": 2, "threads": 1},
        "CPU-bound",
        [
            "3 workers share 2 cores",
            "50 %",
            "; they get 0.70 of these, and other processes the rest: stop those, or add cores.",
        ],
    ),
    "a busy machine, but the envs wait longer for something outside": (
        [shares(worked=8, preempted=1, blocked=1, asleep=7.5)] * 4,
        shares(worked=0.3, preempted=2.2, starved=7.5),
        {"cores": 2, "threads": 1},
        "Sampling-bound",
        ["75 %", "for their envs; use a faster env or more actors"],
    ),
    "envs that sleep use no core": (
        [shares(worked=8, preempted=2, asleep=7)] * 2,
        shares(worked=8, preempted=2),
        {"cores": 2, "threads": 1},
        "CPU-bound",
        ["they get 1.00 of these"],
    ),
    "too few cores for the learner": (
        [BUSY],
        shares(worked=8, preempted=2),
        {},
        "CPU-bound",
        ["2 workers", "20 %"],
    ),
    "nothing to lower, and cores enough": (
        [shares(worked=6, preempted=4)],
        BUSY,
        {"cores": 2, "threads": 1},
        "CPU-bound",
        ["2 workers share 2 cores", "40 %", "something else keeps them busy", "add cores"],
    ),
    "nothing to lower, and one core": (
        [shares(worked=6, preempted=4)],
        BUSY,
        {"cores": 1, "threads": 1},
        "CPU-bound",
        ["add cores, or let both take turns with --on serial"],
    ),
    "too few cores, and with a core for each the learner would still be behind": (
        [shares(worked=2, preempted=1, blocked=7)] * 2,
        shares(worked=6.5, preempted=3, starved=0.5),
        {"max_lag": None, "paid": 256, "cores": 2},
        "Limiter-bound",
        ["70 %", "the 256 updates", "; use fewer replay.updates or a faster device."],
    ),
    "too few cores, which is what holds the actors": (
        [shares(worked=4, preempted=1, blocked=5)] * 2,
        shares(worked=5.5, preempted=4.5),
        {"max_lag": None, "paid": 256, "cores": 2},
        "CPU-bound",
        ["45 %"],
    ),
    "a learner that waits for a core more than it works": (
        [shares(worked=0.5, blocked=9.5)],
        shares(worked=2, preempted=8),
        {"max_lag": None, "paid": 256},
        "CPU-bound",
        ["80 %"],
    ),
    "too few cores, and a learner that is behind without a replay": (
        [shares(worked=2, blocked=8)],
        shares(worked=7, preempted=3),
        {},
        "Learning-bound",
        ["80 %", "; use fewer actors or a faster device."],
    ),
    "only threads to lower": (
        [shares(worked=6, preempted=4)],
        BUSY,
        {"threads": 2},
        "CPU-bound",
        ["; use fewer threads."],
    ),
    "only actors to lower": (
        [shares(worked=6, preempted=4)] * 2,
        BUSY,
        {"threads": 1},
        "CPU-bound",
        ["; use fewer actors."],
    ),
    "preempted actors outweigh a waiting learner": (
        [shares(worked=5, preempted=5)],
        shares(worked=4, starved=6),
        {},
        "CPU-bound",
        ["50 %"],
    ),
    "a little preemption is nothing": (
        [shares(worked=9.5, preempted=0.5)],
        shares(worked=4, starved=6),
        {},
        "Sampling-bound",
        ["60 %"],
    ),
    "both busy": ([shares(worked=9, blocked=1)], shares(worked=9, starved=1), {}, "Balanced", []),
    "one thread": (
        # a turn of one is a wait of the others
        [shares(worked=6, preempted=3, blocked=1), shares(worked=1, preempted=9)],
        shares(worked=3, starved=7),
        {"one_thread": True},
        "One thread",
        ["sampling takes 70 % of the time", "learning 30 %", "--on process"],
    ),
    "nothing measured": ([shares()], shares(), {}, "Too early", []),
    "no actor yet": ([], BUSY, {}, "Too early", []),
}


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_names_the_cause_and_the_cure(case):
    actors, learner, keywords, first, also = CASES[case]
    sentence = verdict(
        {**{f"actor {i}": s for i, s in enumerate(actors)}, "learner": learner}, **keywords
    )
    assert sentence.startswith(first), sentence
    for part in also:
        assert part in sentence, sentence
    assert sentence.endswith("."), sentence
    assert "\n" not in sentence


SERVED = {"actor 0": shares(worked=2, starved=8), "actor 1": shares(worked=2, starved=8)}
CENTRAL = {
    "the one who acts is busy": (
        BUSY,
        shares(worked=4, starved=6),
        "Inference-bound: an inference worker is at work 100 %",
    ),
    "the one who acts waits for envs": (
        shares(worked=5, starved=5),
        shares(worked=4, starved=6),
        "Sampling-bound: the learner waits 60 % of the time for experience, and the actors 50 % "
        "for their envs",
    ),
    "the one who acts waits for the learner": (
        shares(worked=5, blocked=5),
        BUSY,
        "Learning-bound: the actors wait 50 % of the time for the learner",
    ),
    "all are busy": (BUSY, BUSY, "Balanced"),
}


@pytest.mark.parametrize("case", CENTRAL)
def test_under_central_inference_who_acts_says_what_the_actors_wait_for(case):
    inference, learner, said = CENTRAL[case]
    assert verdict({**SERVED, "inference 0": inference, "learner": learner}, max_lag=1).startswith(
        said
    )


def test_waits_shorter_than_a_seventh_are_balance():
    at = {
        share: verdict({"actor 0": BUSY, "learner": shares(worked=100 - share, starved=share)})
        for share in (14, 15)
    }
    assert at[14].startswith("Balanced")
    assert at[15].startswith("Sampling-bound: the learner waits 15 %")


def test_names_say_nothing():
    """A worker is judged by its side of the ring, whatever it is called."""
    balance = {
        "learner 7": replace(BUSY, side="sampling"),
        "actor": replace(shares(worked=5, starved=5), side="learning"),
        "shard 3": replace(BUSY, side="beside"),
    }
    assert verdict_of(balance, Setup()).sentence.startswith(
        "Sampling-bound: the learner waits 50 % of the time"
    )


def test_other_workers_are_not_judged():
    ring = {"actor 0": BUSY, "learner": BUSY}
    assert verdict({**ring, "evaluator": shares(starved=100, preempted=100)}) == verdict(ring)


def test_a_sentence_is_made_of_cause_evidence_and_advice():
    assert Verdict("Balanced").sentence == "Balanced."
    assert Verdict("Balanced", "both are busy").sentence == "Balanced: both are busy."
    assert (
        Verdict("Lockstep", "they wait in turn", "raise it").sentence
        == "Lockstep: they wait in turn; raise it."
    )


def test_advice_of_the_model_stands_in_for_that_of_the_rules_but_on_cores_of_others():
    held = {
        "actor 0": Shares(worked=2, blocked=8, side="sampling"),
        "learner": Shares(worked=10, side="learning"),
    }
    assert verdict_of(held, Setup(), advice="buy one").advice == "buy one" and verdict_of(
        held, Setup()
    ).advice.startswith("use fewer actors")
    few = {name: replace(one, worked=1, preempted=9, blocked=0) for name, one in held.items()}
    found = verdict_of(few, Setup(cores=2, threads=1), advice="buy one")
    assert found.cause == "CPU-bound" and "other processes the rest" in found.advice
    assert verdict_of({}, Setup(), advice="buy one") == Verdict("Too early to say"), (
        "nothing is advised of nothing"
    )


def test_shares_of_a_worker_sum_to_one_and_of_none_to_zero():
    some = shares(worked=1, preempted=2, starved=3, blocked=4)
    assert [some.share(state) for state in STATES] == [0.1, 0.2, 0.3, 0.4]
    assert [shares().share(state) for state in STATES] == [0, 0, 0, 0]
    assert add([some, some]) == shares(worked=2, preempted=4, starved=6, blocked=8)
    assert add([]) == shares()
    assert add([shares(worked=3, asleep=2)] * 2) == shares(worked=6, asleep=4)
    assert shares(worked=3, asleep=2, insert=1).total == 3, "parts of another are not counted again"


def test_a_shard_without_a_core_holds_the_learner_up():
    balance = {
        "actor 0": BUSY,
        "learner": shares(worked=5, starved=5),
        "shard 0": shares(worked=1, preempted=4, starved=5),
    }
    assert verdict(balance | {"shard 1": shares(starved=10)}).startswith("CPU-bound: 4 workers")


def test_what_shards_do_in_one_thread_is_the_learners():
    balance = {
        "actor 0": shares(worked=2),
        "learner": shares(worked=5),
        "shard 0": shares(worked=1),
    }
    assert "sampling takes 25 % of the time, learning 75 %" in verdict(balance, one_thread=True)


@pytest.mark.parametrize(("worked", "first"), [(9.0, "Replay-bound"), (5.0, "Lockstep")])
def test_a_shard_that_is_always_at_work_holds_the_learner_up(worked, first):
    balance = {
        "actor 0": shares(worked=6, blocked=4),
        "learner": shares(worked=5, starved=5),
        "shard 0": shares(worked=2, starved=8),
    }
    said = verdict(balance | {"shard 1": shares(worked=worked, starved=10 - worked)}, max_lag=0)
    assert said.startswith(first) and ("90 %" in said and "replay.shards" in said) == (
        first == "Replay-bound"
    )


@pytest.mark.parametrize(
    ("asleep", "actors", "said"),
    [
        (
            80.0,
            2,
            "of 2.0 s each, which wait for something; use --actors 4 and half the --envs-per-actor",
        ),
        (0.0, 1, "of 2.0 s each; use --actors 2 and half the --envs-per-actor"),
        (0.0, 2, "of 2.0 s each, on all 2 cores; make resets cheaper, or episodes longer."),
    ],
)
def test_resets_that_hold_the_run_back_are_named(asleep, actors, said):
    actor = shares(worked=100, reset=80, counts={"reset": 40}, asleep=asleep)
    sentence = verdict(
        {**{f"actor {i}": actor for i in range(actors)}, "learner": shares(worked=2, starved=98)},
        cores=2,
    )
    assert (
        sentence.startswith("Resetting: 80 % of the actors' time goes into resets")
        and said in sentence
    )
    ring = {
        "actor 0": shares(worked=100, reset=80, counts={"reset": 40}),
        "learner": shares(worked=2, starved=98),
    }
    assert "; use --actors 2 --envs-per-actor 2, since the resets" in verdict(ring, cores=2, envs=3)
    assert "; use --actors 2, since the resets" in verdict(ring, cores=2, envs=1), (
        "an actor has no half env"
    )
    uneven = shares(worked=66, blocked=34, reset=60, counts={"reset": 30}, asleep=60)
    ring = {"actor 0": uneven, "actor 1": uneven, "learner": shares(worked=1, starved=99)}
    assert verdict(ring, max_lag=0, cores=2).startswith("Resetting: 60 %"), (
        "more of their time goes there than into waiting"
    )
    assert verdict(
        ring | {"learner": shares(worked=40, starved=60)}, max_lag=0, cores=2
    ).startswith("Resetting")
    short = replace(uneven, parts={"reset": 32})
    assert verdict(
        {"actor 0": short, "learner": shares(worked=40, starved=60)}, max_lag=0, cores=2
    ).startswith("Lockstep")
    rare = shares(worked=100, reset=20, counts={"reset": 10})
    assert "Resetting" not in verdict(
        {"actor 0": rare, "learner": shares(worked=2, starved=98)}, cores=2
    )


def test_resets_that_hold_the_run_back_are_named_under_central_inference_too():
    balance = {
        "actor 0": shares(worked=60, starved=40, reset=50, counts={"reset": 10}),
        "inference 0": shares(worked=10, starved=90),
        "learner": shares(worked=2, starved=98),
    }
    assert verdict(balance, cores=4).startswith(
        "Resetting: 50 % of the actors' time goes into resets of 5.0 s each"
    )


BEHIND = (
    "Learning-bound: learner 1 is behind, the others wait up to 40 % of the time for it; give "
    "it a core as fast as theirs"
)
SUMS = (
    "All-reduce-bound: the learners wait 30 % of the time for sums over all of them; use fewer "
    "learners"
)
WAITS = "Learning-bound: the actors wait 50 % of the time for the learner"


@pytest.mark.parametrize(
    ("summing", "said"),
    [
        ((40, 0), BEHIND),
        ((40, 19), BEHIND),
        ((40, 20), SUMS),  # it waits half as long as the other one
        ((30, 30), SUMS),
        ((0, 0), WAITS),
        ((14, 14), WAITS),
        ((15, 15), SUMS.replace("30", "15")),
        ((30, 0), BEHIND.replace("40", "30")),  # on average the least that is said
        ((28, 0), WAITS),
    ],
    ids=lambda value: (
        "and".join(map(str, value)) if isinstance(value, tuple) else value.partition(":")[0]
    ),
)
def test_learners_that_wait_for_each_other_name_the_one_that_is_behind_or_the_sums(summing, said):
    ring = {"actor 0": shares(worked=50, blocked=50), "actor 1": shares(worked=50, blocked=50)}
    one, other = (shares(worked=100, all_reduce=share) for share in summing)
    sentence = verdict(ring | {"learner": one, "learner 1": other})
    assert sentence.startswith(said), sentence
    assert sentence.endswith("."), sentence
    turned = verdict(ring | {"learner": other, "learner 1": one})
    assert turned == sentence.replace("learner 1 is", "learner is")


def test_the_learner_that_is_behind_is_the_one_that_waits_least():
    ring = {"actor 0": shares(worked=50, blocked=50)}
    of = {"learner": 30, "learner 1": 30, "learner 2": 10, "learner 3": 30}
    balance = ring | {name: shares(worked=100, all_reduce=share) for name, share in of.items()}
    assert verdict(balance).startswith(
        "Learning-bound: learner 2 is behind, the others wait up to 30 % of the time"
    )
    even = balance | {"learner 2": shares(worked=100, all_reduce=30)}
    assert verdict(even).startswith("All-reduce-bound: the learners wait 30 % of the time")


def test_sums_are_not_named_where_they_hold_nobody_up():
    """The actors have to wait for the learners, there have to be several, and a wait for cores
    comes first.
    """
    slow = shares(worked=100, all_reduce=60)
    two = {"learner": slow, "learner 1": slow}
    ring = {"actor 0": shares(worked=85, blocked=15)}
    assert verdict(ring | two).startswith("All-reduce-bound")
    assert verdict({"actor 0": shares(worked=86, blocked=14)} | two).startswith("Balanced")
    assert verdict(ring | {"learner": slow}).startswith("Learning-bound: the actors wait")
    starved = shares(worked=50, starved=50, all_reduce=40)
    assert verdict({"actor 0": BUSY, "learner": starved, "learner 1": starved}).startswith(
        "Sampling-bound"
    )
    preempted = shares(worked=60, preempted=40, all_reduce=40)
    assert verdict(ring | {"learner": preempted, "learner 1": preempted}).startswith("CPU-bound")


def test_what_the_model_found_some_seconds_ago_has_to_be_seen_now():
    """It said that the learner is the limit; since then an env has become slow."""
    now = {"actor 0": BUSY, "learner": shares(worked=3, starved=7)}
    assert verdict(now, cause="learners", advice="x").startswith(
        "Sampling-bound: the learner waits 70 %"
    )
    still = {"actor 0": shares(worked=8, blocked=2), "learner": shares(worked=9, starved=1)}
    assert verdict(still, cause="learners", advice="x").startswith(
        "Learning-bound: the actors wait 20 %"
    )
