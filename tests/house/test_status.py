"""Each cell of the page of the status is backed: by tests that run there, by figures, by a refusal.

A cell that says more than its tests do, a test that is renamed and a page of figures that is gone
are found here.
"""

from __future__ import annotations

import ast
import platform
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import equipoise as eq
from equipoise import publishing
from equipoise.programs.program import algorithm_names
from equipoise.run.governing import check_on
from equipoise.types import Program

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/about/status.md"
COLUMNS = ("CPU", "GPU (CUDA)", "Ray", "macOS, ARM")
WORDS = ("measured", "tested", "written", "no", "—")

# row -> column -> the tests ("file::test" below tests/), and where a cell says measured, the page
# below docs/ and a line of it that begins a table of figures
Evidence = dict[str, tuple[list[str], str, str]]
RUN, RAY, FAR = "runtime/", "runtime/test_on_ray.py::", "runtime/test_learning_on_ray.py::"
BITS = f"{RAY}test_three_nodes_compute_the_bits_of_one"
PARITY = "runtime/test_parity.py::test_serial_and_process_agree_to_the_bit"
LEARN = f"{FAR}test_an_algorithm_learns_on_three_nodes"
EVIDENCE: dict[str, Evidence] = {
    "one thread": {
        "CPU": ([PARITY], "results/mujoco.md", "--on serial"),
    },
    "actors in processes": {
        "CPU": ([PARITY], "results/throughput.md", "benchmarks/matrix.py"),
        "Ray": ([BITS], "results/cluster.md", "| CartPole-v1, IMPALA |"),
    },
    "lockstep and staleness": {
        "CPU": (
            [
                "algorithms/test_same_step.py::test_the_truth_table",
                PARITY,
            ],
            "results/bottlenecks.md",
            "| lockstep | Lockstep |",
        ),
        "Ray": ([BITS, f"{RAY}test_a_slow_network_does_not_change_a_bit"], "", ""),
    },
    "PPO, IMPALA": {
        "CPU": ([PARITY], "results/recipes.md", "| ppo |"),
        "Ray": ([BITS, LEARN], "", ""),
    },
    "replay: DQN": {
        "CPU": (
            ["runtime/test_replaying.py::test_lockstep_is_the_same_everywhere"],
            "results/off-policy.md",
            "benchmarks/off_policy.py",
        ),
        "Ray": ([BITS, LEARN], "", ""),
    },
    "recorded data": {
        "CPU": (
            ["runtime/test_offline.py::test_without_an_env_serial_and_process_agree_to_the_bit"],
            "",
            "",
        ),
    },
    "language models": {
        "CPU": (
            [
                "runtime/test_text.py::test_the_same_bits_wherever_it_runs",
                "runtime/test_text.py::test_every_algorithm_of_text_learns_on_the_ring",
            ],
            "results/text.md",
            "tokens/s",
        ),
        "Ray": ([f"{RAY}test_a_text_task_computes_the_bits_of_one_machine"], "", ""),
    },
    "several agents": {
        "CPU": (["runtime/test_policies.py::test_serial_and_process_agree_to_the_bit"], "", ""),
        "Ray": ([f"{FAR}test_two_policies_learn_on_three_nodes"], "", ""),
    },
    "central inference": {
        "CPU": (
            [
                "runtime/test_central.py::test_in_lockstep_it_is_local_inference_of_half_the_envs"
                "_to_the_bit"
            ],
            "results/inference.md",
            "central",
        ),
        "Ray": ([BITS, LEARN], "", ""),
    },
    "several learners": {
        "CPU": (
            ["runtime/test_learners.py::test_both_runtimes_compute_the_same"],
            "guides/learners.md",
            "| PPO | learners | steps/s |",
        ),
        "Ray": (
            [f"{RAY}test_a_learner_goes_to_the_node_of_the_actors_that_feed_it", LEARN],
            "",
            "",
        ),
    },
    "sharded networks": {
        "CPU": (
            [
                "learners/test_sharded.py::test_two_make_the_updates_of_one_and_their_state_is_that"
                "_of_one"
            ],
            "",
            "",
        ),
        "Ray": (
            [f"{RAY}test_scorers_and_a_learner_on_nodes_of_their_own_have_the_bits_of_one_machine"],
            "",
            "",
        ),
    },
    "envs on tensors": {
        "CPU": (
            ["runtime/test_device_envs.py::test_serial_and_process_agree_to_the_bit"],
            "guides/device-envs.md",
            "| env | setting | steps/s of training |",
        ),
    },
    "envs in JAX": {
        "CPU": (
            ["runtime/test_jax_runs.py::test_serial_and_process_agree_to_the_bit"],
            "guides/jax.md",
            "| env | streams | the library's own loop, steps/s |",
        ),
    },
    "`bf16`": {
        "CPU": (
            ["nets/test_precision.py::test_a_gradient_is_as_exact_as_what_it_is_of"],
            "guides/gpu.md",
            "| instructions | fp32, samples/s | bf16 |",
        ),
    },
    "kill and resume": {
        "CPU": (["runtime/test_resume.py::test_a_killed_run_goes_on_to_the_same_bits"], "", ""),
        "Ray": ([f"{RAY}test_a_run_goes_on_elsewhere_to_the_same_bits"], "", ""),
    },
    "export to ONNX": {
        "CPU": (
            [
                "exporting/test_export.py::test_a_run_becomes_an_artifact_and_plays_like_it",
                "serving/test_http.py::test_json_msgpack_and_frames_say_the_same",
                "registry/test_registry.py::test_a_real_artifact_goes_in_and_acts_when_it_comes_out",
            ],
            "results/serving.md",
            "|",
        ),
    },
    "`serve` of a language model": {
        "CPU": (
            [
                "serving/test_chat.py::test_a_stream_is_the_answer_in_parts",
                "serving/test_chat_run.py::test_a_run_is_served_and_its_newer_weights_are_followed",
            ],
            "guides/serving-language.md",
            "| model | engine | whole answers | streams |",
        ),
    },
    "calls of agents": {
        "CPU": (
            [
                "serving/test_proxy.py::test_an_answer_its_conversation_and_its_reward",
                "actors/test_calls.py::test_conversations_are_learned_from_as_they_were_drawn",
            ],
            "guides/proxy.md",
            "| client | conversations | first 500 | last 500 |",
        ),
    },
    "vLLM's servers": {
        "CPU": (
            [
                "actors/test_server_engine.py::test_a_server_that_dies_costs_what_it_had_in_flight",
                "actors/test_vllm_exchanges.py::"
                "test_requests_are_those_that_were_recorded_and_answers_are_read",
            ],
            "",
            "",
        ),
    },
    "worlds that connect": {
        "CPU": (
            ["worlds/test_remote.py::test_rows_are_those_of_the_same_env_stepped_here"],
            "",
            "",
        ),
    },
    "studies": {
        "CPU": (
            [
                "studies/test_killed.py::test_a_killed_study_goes_on_to_the_same_journal",
                "studies/test_cloning.py::test_a_clone_makes_the_updates_that_its_parent_makes",
            ],
            "",
            "",
        ),
        "Ray": (
            [
                "studies/test_on_ray.py::test_a_cluster_carries_a_study_on_to_the_journal_of_one_machine",
            ],
            "",
            "",
        ),
    },
    "suites": {
        "CPU": (
            ["studies/test_kept.py::test_a_run_of_a_cell_is_kept_and_counts_for_its_suite"],
            "",
            "",
        ),
    },
    "the live view": {
        "CPU": (
            [
                "cli/test_picture.py::test_the_picture_holds_the_whole_report",
                "watching/test_page.py::test_what_changes_is_pushed",
                "report/test_page.py::test_five_seeds_are_one_curve",
            ],
            "",
            "",
        ),
    },
}
# What may not run in CI, by column; a Ray cell needs its own mark.
NOT_IN_CI = {"gpu", "ray", "jax", "bench", "slow", "browser", "clients"}
COMMAND = re.compile(r"equipoise [a-z]+ |benchmarks/\w+\.py|make bench")
MARK = {"GPU (CUDA)": "gpu", "Ray": "ray"}


def matrix(text: str) -> dict[str, dict[str, str]]:
    """The cells of the table, by row and column."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head = next(n for n, line in enumerate(lines) if all(name in line for name in COLUMNS))
    cells = {}
    for line in lines[head + 2 :]:
        name, *values = [cell.strip() for cell in line.split("|")[1:-1]]
        cells[name] = dict(zip(COLUMNS, values, strict=True))
    return cells


def key(row: str) -> str:
    """The key of a row in ``EVIDENCE``; "" if there is none."""
    found = [name for name in EVIDENCE if row.startswith(name)]
    return found[0] if len(found) == 1 else ""


def marks(named: str) -> set[str] | None:
    """The marks of a test, with those of its file; None if there is no such test."""
    file, _, name = named.partition("::")
    path = ROOT / "tests" / file
    if not path.is_file():
        return None
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            of_file = [
                one.value
                for one in tree.body
                if isinstance(one, ast.Assign)
                and any(isinstance(x, ast.Name) and x.id == "pytestmark" for x in one.targets)
            ]
            # only direct marks: those of one case of a parametrised test leave the others
            direct = [one for one in node.decorator_list if "parametrize" not in ast.unparse(one)]
            said = " ".join(ast.unparse(one) for one in (*of_file, *direct))
            return set(re.findall(r"mark\.(\w+)", said))
    return None


def wrong(text: str) -> list[str]:
    """The cells that their evidence does not support."""
    found = []
    for row, cells in matrix(text).items():
        for column, cell in cells.items():
            word = cell.replace(",", " ").split()[0]
            at = f"{row} / {column}"
            if word not in WORDS:
                found.append(f"{at}: {cell!r} is no word of the page")
            if word not in ("measured", "tested"):
                continue
            tests, page, line = EVIDENCE.get(key(row), {}).get(column, ([], "", ""))
            if not tests:
                found.append(f"{at}: {word} without a test")
            for test in tests:
                if (of := marks(test)) is None:
                    found.append(f"{at}: no test {test}")
                    continue
                allowed = {MARK.get(column, ""), "jax" if "JAX" in row else ""}
                allowed |= {"slow"} if column == "Ray" else set()
                if of & NOT_IN_CI - allowed or not {MARK.get(column)} - {None} <= of:
                    found.append(f"{at}: {test} has the marks {sorted(of)}")
            if word == "measured":
                figures = ROOT / "docs" / page
                if not page or not figures.is_file() or line not in figures.read_text():
                    found.append(f"{at}: measured without figures")
                elif not re.search(
                    r"\b(?:equipoise|make|benchmarks/|python)\b", figures.read_text()
                ):
                    found.append(f"{at}: figures without a command")
    return found


def test_each_cell_has_its_tests_and_its_figures() -> None:
    assert wrong(PAGE.read_text()) == []


def test_all_evidence_is_of_a_row() -> None:
    rows = {key(row) for row in matrix(PAGE.read_text())}
    assert set(EVIDENCE) <= rows


def test_algorithms_that_no_cluster_has_run_are_named() -> None:
    files = ("test_on_ray", "test_learning_on_ray", "test_cluster")
    run = "".join((ROOT / f"tests/runtime/{file}.py").read_text() for file in files)
    for row, cells in matrix(PAGE.read_text()).items():
        names = re.findall(r"[\w+-]+", row.replace("token PPO", "token_ppo"))
        slugs = {
            name: {"Ape-X": "apex_dqn"}.get(name, name.lower().replace("-", "_")) for name in names
        }
        ours = {name for name, slug in slugs.items() if slug in algorithm_names()}
        if not ours or not cells["Ray"].startswith(("tested", "measured")):
            continue
        ran = {name for name in ours if f'"{slugs[name]}"' in run}
        if alone := re.search(r"\((\w+) alone\)", cells["Ray"]):
            assert ran == {alone[1]}, row
            continue
        left_out = re.search(r"\((.*): —\)", cells["Ray"])
        assert ours - ran == set((left_out[1] if left_out else "").split(", ")) - {""}, row


# ---------------------------------------------------------------------------------- what is refused


def refused(attempt: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as caught:
        attempt()
    return str(caught.value)


def made(*settings: str, env: str = "CartPole-v1") -> Program:
    return eq.program(env, "ppo", settings=list(settings), recipe=False)


IN_PROCESSES = (lambda: publishing.check_order("process"), "keeps the order of stores")
# row -> column -> how it is tried, and a part of the answer
NO: dict[str, dict[str, tuple[Callable[[], object], str]]] = {
    "one thread": {
        "Ray": (
            lambda: eq.start("CartPole-v1", on="serial", cluster={"address": "x"}),
            "expected no settings of a cluster with --on serial",
        )
    },
    "actors in processes": {"macOS, ARM": IN_PROCESSES},
    "central inference": {"macOS, ARM": IN_PROCESSES},
    "several learners": {"macOS, ARM": IN_PROCESSES},
    "sharded networks": {"macOS, ARM": IN_PROCESSES},
    "`fp16`, `tf32`, CUDA graphs": {
        "CPU": (lambda: made("placement.precision=fp16"), "which has no fp16"),
    },
    "worlds that connect": {
        "Ray": (lambda: check_on(made(env="remote:tcp://127.0.0.1:7000"), "ray"), "one machine"),
    },
}


FP16 = ("placement.precision=fp16", "placement.precision=tf32", "placement.graphs=true")


@pytest.mark.parametrize(
    ("row", "column"), [(row, column) for row, columns in NO.items() for column in columns]
)
def test_a_cell_that_says_no_is_refused(
    row: str, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if column.startswith("macOS"):
        monkeypatch.setattr(platform, "machine", lambda: "arm64")
    attempt, said = NO[row][column]
    assert said in refused(attempt)


@pytest.mark.parametrize("setting", FP16)
def test_what_a_gpu_alone_has_is_refused_on_a_cpu(setting: str) -> None:
    assert "device=cpu" in refused(lambda: made(setting))


def untried(text: str) -> list[str]:
    """The cells that say no, and that no attempt above is of."""
    tried = {*NO, "`fp16`, `tf32`, CUDA graphs"}
    return [
        f"{row} / {column}"
        for row, cells in matrix(text).items()
        for column, cell in cells.items()
        if cell.startswith("no")
        and not any(
            row.startswith(name) and column in {*NO.get(name, {}), *ELSEWHERE.get(name, ())}
            for name in tried
        )
    ]


# Refused for the reason of another column: a Mac has no CUDA either.
ELSEWHERE = {"`fp16`, `tf32`, CUDA graphs": ("macOS, ARM",)}


def test_each_cell_that_says_no_is_tried() -> None:
    assert untried(PAGE.read_text()) == []


@pytest.mark.parametrize(
    ("cell", "instead", "found"),
    [
        ("| tested | written | — | written |\n| language", "| tested | tested | — | written |\n|"
         " language", "recorded data (`--dataset`) / GPU (CUDA): tested without a test"),
        ("| tested | written | tested (text alone)", "| measured | written | tested (text alone)",
         "sharded networks (`placement.shard`) / CPU: measured without figures"),
        ("| `bf16` | measured | written | —", "| `bf16` | measured | written | tested",
         "`bf16` / Ray: tested without a test"),
        ("| `bf16` | measured", "| `bf16` | fine", "`bf16` / CPU: 'fine' is no word of the page"),
    ],
    ids=["gpu", "figures", "ray", "word"],
)  # fmt: skip
def test_a_cell_that_says_too_much_is_found(cell: str, instead: str, found: str) -> None:
    text = PAGE.read_text()
    assert cell in text
    assert wrong(text.replace(cell, instead, 1)) == [found]


def test_a_test_that_cannot_run_there_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EVIDENCE["recorded data"], "CPU", ([BITS], "", ""))
    monkeypatch.setitem(EVIDENCE["kill and resume"], "CPU", (["runtime/test_x.py::a"], "", ""))
    assert wrong(PAGE.read_text()) == [
        f"recorded data (`--dataset`) / CPU: {BITS} has the marks ['ray', 'timeout']",
        "kill and resume to the same bits / CPU: no test runtime/test_x.py::a",
    ]
    text = PAGE.read_text().replace("| tested | written | tested |", "| tested | no | tested |", 1)
    assert untried(text) == ["several agents, several policies / GPU (CUDA)"]
