"""Manifests against the Kubernetes schemas, Dockerfiles against hadolint, shell examples against the shell."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
MANIFESTS = sorted(p for p in KUBERNETES.rglob("*.yaml") if p.name != "kustomization.yaml")
KUSTOMIZATIONS = sorted(KUBERNETES.rglob("kustomization.yaml"))
VERSIONS = ("1.29", "1.37")


def load(path: Path) -> dict[str, Any]:
    documents = list(yaml.safe_load_all(path.read_text()))
    assert len(documents) == 1
    return documents[0]


def validate(resource: dict[str, Any]) -> None:
    for version in VERSIONS:
        kubernetes_validate.validate(resource, version, strict=True)


def validate_jobset(resource: dict[str, Any]) -> None:
    """A JobSet isn't in Kubernetes' own schemas: its parts are, and its own fields are in Kubeflow's models."""
    known = JobsetV1alpha2JobSet.from_dict(copy.deepcopy(resource))
    assert known is not None
    unknown = set(resource["spec"]) - set(known.to_dict()["spec"])
    assert unknown == set()
    for job in resource["spec"]["replicatedJobs"]:
        assert set(job) <= {"name", "replicas", "template", "dependsOn", "groupName"}
        validate(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
        )


def check(resource: dict[str, Any]) -> None:
    if resource["kind"] == "JobSet":
        validate_jobset(resource)
    else:
        validate(resource)


def test_there_are_manifests() -> None:
    kinds = {load(path)["kind"] for path in MANIFESTS}
    assert {"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget", "JobSet"} <= kinds


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_manifest_fits_the_schemas(path: Path) -> None:
    check(load(path))


def test_a_misspelt_field_would_be_found() -> None:
    wrong = load(KUBERNETES / "serving" / "deployment.yaml")
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(wrong)
    wrong_set = load(KUBERNETES / "training" / "jobset.yaml")
    wrong_set["spec"]["replicatedJobs"][0]["template"]["spec"]["paralellism"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        validate_jobset(wrong_set)


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=lambda p: p.parent.name)
def test_a_kustomization_names_files_that_exist_and_its_patches_apply(path: Path) -> None:
    customization = load(path)
    assert set(customization) <= {
        "apiVersion",
        "kind",
        "namespace",
        "labels",
        "resources",
        "images",
        "patches",
    }
    for name in customization["resources"]:
        assert (path.parent / name).exists()
    for patch in customization.get("patches", []):
        kind, name = patch["target"]["kind"], patch["target"]["name"]
        (resource,) = [r for r in map(load, MANIFESTS) if (r["kind"], r["metadata"]["name"]) == (kind, name)]
        for operation in yaml.safe_load(patch["patch"]):
            assert operation["op"] == "replace"
            *way, last = operation["path"].strip("/").split("/")
            place: Any = resource
            for step in way:
                place = place[int(step) if isinstance(place, list) else step]
            key = int(last) if isinstance(place, list) else last
            assert place[key] != operation["value"]  # there is something to replace
            place[key] = operation["value"]
        check(resource)


def test_applying_again_leaves_the_autoscalers_replicas_alone() -> None:
    scaled = load(KUBERNETES / "serving" / "autoscaler.yaml")["spec"]["scaleTargetRef"]["name"]
    deployment = load(KUBERNETES / "serving" / "deployment.yaml")
    assert deployment["metadata"]["name"] == scaled
    assert "replicas" not in deployment["spec"]


def test_whatever_takes_a_target_from_the_hub_has_a_token_for_it() -> None:
    serving = load(KUBERNETES / "serving" / "deployment.yaml")["spec"]
    job = load(KUBERNETES / "training" / "jobset.yaml")["spec"]["replicatedJobs"][0]["template"]["spec"]
    for pod in (serving["template"]["spec"], job["template"]["spec"]):
        (token,) = [v for v in pod["containers"][0]["env"] if v["name"] == "HF_TOKEN"]
        assert token["valueFrom"]["secretKeyRef"]["name"] == "hub-token"


def test_the_deployments_command_is_one_the_command_line_takes() -> None:
    from typer.testing import CliRunner

    from fledge.commands.main import app

    arguments = load(KUBERNETES / "serving" / "deployment.yaml")["spec"]["template"]["spec"]["containers"][0][
        "args"
    ]
    help_text = CliRunner().invoke(app, [arguments[0], "--help"], terminal_width=200).output
    options = [argument for argument in arguments[1:] if argument.startswith("--")]
    assert len(options) >= 6
    for option in options:
        assert option.split("=")[0] in help_text


@pytest.mark.parametrize("path", sorted((DEPLOY / "docker").glob("*.Dockerfile")), ids=lambda p: p.name)
def test_a_dockerfile_is_clean(path: Path) -> None:
    program = shutil.which("hadolint") or str(Path(sys.executable).with_name("hadolint"))
    found = subprocess.run([program, str(path)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")
    text = path.read_text()
    assert "\nUSER 10001\n" in text
    assert "\nHEALTHCHECK " in text
    assert "--owner fledge --group fledge /home/fledge/.cache" in text  # or a volume there is root's
    (extras,) = re.findall(r'"\.\[([a-z0-9,]+)\]"', text)
    assert {"gcs", "s3", "serve"} <= set(
        extras.split(",")
    )  # heads from buckets, and what it is checked for: serving


@pytest.mark.parametrize("name", ["slurm/train.sbatch", "ray/submit.sh"])
def test_a_shell_example_parses(name: str) -> None:
    assert subprocess.run(["bash", "-n", str(DEPLOY / name)], check=False).returncode == 0
