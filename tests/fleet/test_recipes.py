"""The recipes of examples/fleet: what they start joins, plays, and hands back on SIGTERM what is not over."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
import yaml
from tests.docs.blocks import ROOT
from tests.fleet.deployed_server import deployed_server, wait
from tests.fleet.ssh_server import SshServer
from tests.fleet.test_remote_rollouts import ENV, job_of, submit

from hud.trace import dashed, new_id

RECIPES = ROOT / "examples" / "fleet"
KUBERNETES = RECIPES / "kubernetes"
SBATCH = RECIPES / "slurm" / "join.sbatch"
SSH = RECIPES / "ssh" / "fleet.sh"
SRUN = """#!/bin/bash
# Takes srun's options off, and runs the command once, as on a cluster of one node.
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


def deployment():
    return yaml.safe_load((KUBERNETES / "deployment.yaml").read_text())


def literals():
    (made,) = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["configMapGenerator"]
    return dict(one.split("=", 1) for one in made["literals"])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with deployed_server(tmp_path_factory.mktemp("recipes"), {"echo": ENV}, workers=0) as made:
        yield made


@pytest.fixture
def key(server):
    with server.client() as api:
        made = api.post("/v2/fleet-passes", json={"name": f"recipe {new_id()[:6]}"})
        return made.json()["key"]


@pytest.fixture
def variables(tmp_path):
    """What a machine's environment is: openhud on its PATH, and a home of its own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    hud = programs / "hud"
    hud.write_text(f'#!/bin/sh\nexec {sys.executable} -m hud.cli.main "$@"\n')
    hud.chmod(0o755)
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }


class Launched:
    """A program that starts a worker, and becomes it."""

    def __init__(self, command, variables, log):
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=variables, stdout=out, stderr=out, start_new_session=True
            )

    def end(self):
        """Send SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def launch(tmp_path):
    started = []

    def launched(command, variables):
        one = Launched(command, variables, tmp_path / f"said.{len(started)}.log")
        started.append(one)
        return one

    yield launched
    for one in started:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()


def plays_and_hands_back(server, end):
    """Play one rollout, end the worker during another, and look at what the queue says of both."""
    with server.client() as api:
        job = new_id()
        submit(api, job, seconds=0.0)
        wait(lambda: job_of(api, job)["graded"] == 1)
        long = submit(api, job, seconds=60.0)
        found = lambda: api.get(f"/v2/rollouts/{dashed(long)}").json()  # noqa: E731
        wait(lambda: found()["status"] == "running")
        end()
        (attempt,) = found()["attempts"]
        assert (found()["status"], attempt["outcome"]) == ("queued", "handed back")
        api.post("/v2/rollouts/cancel_job", json={"job_id": dashed(job)}).raise_for_status()
        nodes = api.get("/v2/fleet-nodes").json()["items"]
        return max(nodes, key=lambda one: one["joined_at"])


@pytest.mark.slow
def test_the_pod_of_the_deployment_plays_and_hands_back(server, key, variables, launch):
    (container,) = deployment()["spec"]["template"]["spec"]["containers"]
    given = {**literals(), "HUD_URL": server.url, "HUD_API_KEY": key, "HUD_NOTICE": "1"}
    pod = launch([*container["command"], *container["args"]], {**variables, **given})
    node = plays_and_hands_back(server, lambda: pod.end() == 0 or pytest.fail("SIGTERM"))
    assert (node["status"], node["labels"], node["room"]) == ("left", {"market": "spot"}, 16)


def test_the_deployment_holds_together():
    whole = deployment()
    spec = whole["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert (whole["apiVersion"], whole["kind"]) == ("apps/v1", "Deployment")
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert {one["name"] for one in container["volumeMounts"]} == {
        one["name"] for one in pod["volumes"]
    }
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    generated = {
        one["name"] for kind in ("configMap", "secret") for one in kustomization[f"{kind}Generator"]
    }
    assert generated == {next(iter(one.values()))["name"] for one in container["envFrom"]}
    used = set(re.findall(r"\$(HUD_\w+)", container["args"][0]))
    assert used == set(literals()), "the pass goes by its variable"
    # What handing back takes comes on top of the notice.
    assert pod["terminationGracePeriodSeconds"] >= int(literals()["HUD_NOTICE"]) + 15


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
def test_the_kustomization_renders(tmp_path):
    shutil.copytree(KUBERNETES, tmp_path / "fleet")
    (tmp_path / "fleet" / "pass.env").write_text("HUD_API_KEY=secret\n")
    (tmp_path / "own").mkdir()
    overlay = {"resources": ["../fleet"], "replicas": [{"name": "hud-fleet", "count": 30}]}
    (tmp_path / "own" / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    command = ["kubectl", "kustomize", str(tmp_path / "own")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    made = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    assert set(made) == {"ConfigMap", "Secret", "Deployment"}
    assert made["Deployment"]["spec"]["replicas"] == 30
    (container,) = made["Deployment"]["spec"]["template"]["spec"]["containers"]
    names = {next(iter(one.values()))["name"] for one in container["envFrom"]}
    assert names == {made[kind]["metadata"]["name"] for kind in ("ConfigMap", "Secret")}


@pytest.mark.slow
def test_the_job_of_slurm_plays_and_hands_back(server, key, variables, launch, tmp_path):
    if shutil.which("srun") is None:
        (tmp_path / "bin" / "srun").write_text(SRUN)
        (tmp_path / "bin" / "srun").chmod(0o755)
    (tmp_path / "pass").write_text(key + "\n")
    given = {
        "HUD_URL": server.url,
        "HUD_PASS_FILE": str(tmp_path / "pass"),
        "HUD_NOTICE": "1",
        "SLURM_JOB_PARTITION": "preempt",
    }
    job = launch(["bash", str(SBATCH)], {**variables, **given})
    node = plays_and_hands_back(server, lambda: job.end() == 0 or pytest.fail("SIGTERM"))
    assert (node["status"], node["labels"]) == ("left", {"partition": "preempt"})
    assert (tmp_path / ".hud" / "fleet").is_dir()


def test_the_script_for_slurm_says_what_it_lacks(variables):
    done = subprocess.run(
        ["bash", str(SBATCH)], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "HUD_URL: is the address of the platform" in done.stderr
    options = dict(
        re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", SBATCH.read_text(), re.MULTILINE)
    )
    assert options["signal"].startswith("TERM@"), "of the steps, and not of the script alone"
    assert options["ntasks-per-node"] == "1"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh here")
def test_machines_by_ssh_play_and_hand_back(server, key, variables, tmp_path):
    machines = tmp_path / "machines"
    machines.mkdir()
    with SshServer(machines, variables) as ssh:
        given = {
            "SSH": ssh.command,
            "HUD_URL": server.url,
            "HUD_API_KEY": key,
            "HUD_NOTICE": "1",
            "HUD_LABELS": "--label market=desk --label zone=a",
        }

        def fleet(action, *hosts, code=0):
            done = subprocess.run(
                [str(SSH), action, *(f"{host}@127.0.0.1" for host in hosts)],
                env={**variables, **given},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == code, done.stdout + done.stderr
            return sorted(done.stdout.replace("@127.0.0.1", "").splitlines())

        assert fleet("up", "one", "two") == ["one is up", "two is up"]
        try:
            assert fleet("up", "one") == ["one is up already"]
            assert [line.split(":")[0] for line in fleet("status", "one", "three")] == [
                "one is up",
                "three is not up",
            ]
            command = (machines / "one" / ".hud" / "fleet.pid").read_text().strip()
            seen = subprocess.run(
                ["ps", "-o", "args=", "-p", command], capture_output=True, text=True
            )
            assert key not in seen.stdout
            fleet("down", "two")
            node = plays_and_hands_back(
                server, lambda: fleet("down", "one") == ["one is down"] or pytest.fail("down")
            )
        finally:
            fleet("down", "one", "two")
        assert (node["status"], node["labels"]) == ("left", {"market": "desk", "zone": "a"})
        assert fleet("down", "one") == ["one was not up"]
        given["HUD_API_KEY"] = "hud_nonsense"
        assert any("refuses this worker" in line for line in fleet("up", "one", code=1))


@pytest.mark.slow
@pytest.mark.parametrize("script", [SBATCH, SSH], ids=lambda path: path.name)
def test_scripts_are_bash(script):
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert os.access(script, os.X_OK)
