"""What a release is made of: locked by hashes, listed, audited where that is possible, and published without a token."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
PACKAGES = re.findall(r"^([A-Za-z0-9._-]+)==", LOCK, re.MULTILINE)


def run(*command, **variables):
    return subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": sys.executable, **variables},
    )


def test_the_lock_is_that_of_the_project():
    done = run("scripts/lock", "--check")
    assert done.returncode == 0, done.stderr
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *extras["train"],
        *extras["platform"],
        *extras["environments"],
    ]
    names = {re.match(r"[A-Za-z0-9._-]+", one)[0].lower().replace("_", "-") for one in wanted}
    assert names <= {one.lower() for one in PACKAGES}


def test_every_locked_package_has_hashes_and_comes_from_no_other_place():
    for block in re.split(r"\n(?=[A-Za-z0-9])", LOCK.partition("\n\n")[0])[1:]:
        assert "--hash=sha256:" in block, block
    assert "://" not in LOCK
    assert "--index" not in LOCK


@pytest.mark.slow
def test_the_bill_of_materials_names_every_locked_package(tmp_path):
    written = []
    for name in ("one.json", "two.json"):
        done = run(sys.executable, "scripts/sbom", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        written.append(json.loads((tmp_path / name).read_text()))
    bill, again = written
    assert bill == again
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert sorted(one["name"] for one in bill["components"]) == sorted(PACKAGES)
    references = [one["bom-ref"] for one in bill["components"]]
    assert sorted(set(references)) == bill["dependencies"][0]["dependsOn"]
    for one in bill["components"]:
        assert one["externalReferences"][0]["hashes"], one["name"]


@pytest.mark.slow
@pytest.mark.parametrize(("required", "code"), [("0", 0), ("1", 1)])
def test_an_audit_that_cannot_ask_says_so(required, code):
    away = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    done = run("scripts/audit-dependencies", AUDIT_REQUIRED=required, **away)
    assert done.returncode == code, done.stderr
    assert "were not audited" in done.stdout


def test_the_image_runs_as_a_user_and_installs_what_is_locked():
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("FROM"))
    users = [line.split()[1] for line in lines[last:] if line.startswith("USER")]
    assert users
    assert users[-1].split(":")[0] not in ("0", "root")
    after = lines[lines.index(f"USER {users[-1]}") :]
    assert not [line for line in after if line.startswith(("RUN", "COPY", "ADD"))]
    installs = [line for line in lines if "pip install" in line]
    assert any("--require-hashes" in line and "requirements.lock" in line for line in installs)
    assert not [line for line in lines if re.search(r"KEY|TOKEN|SECRET|PASSWORD", line)]
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    assert kept[0] == "*"
    copied = {
        word
        for line in lines
        if line.startswith("COPY") and "--from" not in line
        for word in line.split()[1:-1]
    }
    assert copied <= {line[1:] for line in kept if line.startswith("!")}


def test_a_release_is_published_by_an_identity_and_no_token():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "secrets." not in text
    flow = yaml.safe_load(text)
    assert flow["permissions"] == {}
    holders = [name for name, job in flow["jobs"].items() if "id-token" in job["permissions"]]
    assert holders == ["publish"]
    assert flow["jobs"]["publish"]["environment"] == "pypi"
    assert not [step for step in flow["jobs"]["publish"]["steps"] if "run" in step]
    for used in re.findall(r"uses: (\S+)", text):
        name, _, version = used.partition("@")
        assert name.startswith("pypa/") or re.fullmatch(r"[0-9a-f]{40}", version), used


def test_a_report_of_a_vulnerability_has_an_address():
    page = (ROOT / "SECURITY.md").read_text()
    for place in re.findall(r"\]\(([^)#]+)", page):
        assert (ROOT / place).exists(), place
    assert "in private" in page
