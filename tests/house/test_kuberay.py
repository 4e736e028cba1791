"""The manifests of ``deploy/kuberay`` against the schema that is kept beside them, and what they
say about the run.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from equipoise.cli.cluster import cluster_settings
from equipoise.programs.cluster import read_cluster

KUBERAY = Path(__file__).parents[2] / "deploy" / "kuberay"
SCHEMA = KUBERAY / "schema" / "ray.io_v1.json"
MANIFESTS = ("raycluster.yaml", "rayjob.yaml")


def manifest(name: str) -> Any:
    return yaml.safe_load((KUBERAY / name).read_text())


def wrong(made: Any) -> list[str]:
    """What is wrong in a manifest, by its place."""
    schema = json.loads(SCHEMA.read_text())
    of_kind = next(
        one for one in schema["oneOf"] if one["properties"]["kind"]["const"] == made["kind"]
    )
    errors = jsonschema.Draft202012Validator({**of_kind, "$defs": schema["$defs"]}).iter_errors(
        made
    )
    return [f"{'.'.join(map(str, one.absolute_path))}: {one.message}" for one in errors]


def workers(made: Any) -> list[Any]:
    spec = made["spec"]
    groups: list[Any] = spec.get("rayClusterSpec", spec)["workerGroupSpecs"]
    return groups


def test_the_schema_is_the_one_that_was_pinned() -> None:
    said, name = (KUBERAY / "schema" / "SHA256SUMS").read_text().split()
    assert name == SCHEMA.name
    assert hashlib.sha256(SCHEMA.read_bytes()).hexdigest() == said
    jsonschema.Draft202012Validator.check_schema(json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_has_only_fields_that_there_are(name: str) -> None:
    assert wrong(manifest(name)) == []


@pytest.mark.parametrize("name", MANIFESTS)
@pytest.mark.parametrize(
    ("at", "key", "value", "said"),
    [
        ((), "workergroups", [], "'workergroups' was unexpected"),
        ((0,), "minReplica", 1, "'minReplica' was unexpected"),
        ((0,), "maxReplicas", "8", "'8' is not of type 'integer'"),
        ((0,), "labels", {"tier": 1}, "1 is not of type 'string'"),
        ((0, "template", "spec"), "preStop", {}, "'preStop' was unexpected"),
        (
            (0, "template", "spec", "containers", 0),
            "resources",
            {"limit": {}},
            "'limit' was unexpected",
        ),
    ],
)
def test_a_wrong_field_is_found(
    name: str, at: tuple[Any, ...], key: str, value: Any, said: str
) -> None:
    made = copy.deepcopy(manifest(name))
    place: Any = workers(made) if at else made["spec"]
    for step in at:
        place = place[step]
    place[key] = value
    assert any(said in one for one in wrong(made)), wrong(made)


def test_both_manifests_have_the_same_cluster() -> None:
    assert manifest("rayjob.yaml")["spec"]["rayClusterSpec"] == manifest("raycluster.yaml")["spec"]


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_pod_has_time_to_hand_its_actors_over(name: str) -> None:
    for group in workers(manifest(name)):
        pod = group["template"]["spec"]
        (script,) = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][2:]
        deadline = re.search(
            r"ray drain-node .*--deadline-remaining-seconds (\d+); sleep (\d+)", script
        )
        assert deadline is not None, script
        assert int(deadline[1]) <= int(deadline[2]) < pod["terminationGracePeriodSeconds"] - 10
        assert (
            pod["containers"][0]["resources"]["requests"]
            == pod["containers"][0]["resources"]["limits"]
        )


def test_the_jobs_command_means_machines_that_its_cluster_has() -> None:
    job = manifest("rayjob.yaml")["spec"]
    words = shlex.split(job["entrypoint"])
    assert words[:2] == ["equipoise", "train"]
    given = {key: [b for a, b in pairwise(words) if a == key] for key in ("--address", "--cluster")}
    cluster = read_cluster(cluster_settings(given["--address"][0], given["--cluster"]))
    reserved, spot = workers(manifest("rayjob.yaml"))
    assert (
        cluster.labels == spot["labels"] != reserved["labels"]
        and cluster.autoscale
        and cluster.home_actors == 0
    )
    assert json.loads(job["entrypointResources"]).keys() <= reserved["resources"].keys()
    assert "--or-resume" in words and job["backoffLimit"] > 0
