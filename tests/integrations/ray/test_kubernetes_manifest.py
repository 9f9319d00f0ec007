"""The manifest of examples/fleet/kubernetes, by Kubernetes' own schemas: no unknown key, no missing one."""

from pathlib import Path

import pytest
import yaml

kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="scripts/setup-integration ray"
)

MANIFEST = Path(__file__).parents[3] / "examples" / "fleet" / "kubernetes" / "deployment.yaml"


@pytest.fixture
def deployment():
    return yaml.safe_load(MANIFEST.read_text())


@pytest.mark.parametrize("version", ["1.30", kubernetes_validate.latest_version()])
def test_the_deployment_is_one_by_the_schema(deployment, version):
    kubernetes_validate.validate(deployment, version, strict=True)


def test_the_schema_finds_what_is_wrong(deployment):
    deployment["spec"]["template"]["spec"]["terminationGraceSeconds"] = 45
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGraceSeconds"):
        kubernetes_validate.validate(deployment, "1.30", strict=True)
    del deployment["spec"]["template"]["spec"]["terminationGraceSeconds"]
    del deployment["spec"]["selector"]
    with pytest.raises(kubernetes_validate.ValidationError, match="selector"):
        kubernetes_validate.validate(deployment, "1.30", strict=True)
