"""Every feature of Harbor's format is played, or named: those that a workspace lacks, and those that leave a task out."""

import pytest
from tests.integrations.containers.image_layouts import needs_bubblewrap
from tests.integrations.harbor.harbor_folders import write_task
from tests.sources import ROOT

from hud import Taskset
from hud.agents import ScriptedAgent
from hud.errors import UsageError
from hud_integrations.harbor import HarborEnvironment
from hud_integrations.harbor.task_folder import read_folder

LEFT_OUT = {
    "gpus = 1": "environment.gpus",
    '[environment.tpu]\ntype = "v5"': "environment.tpu",
    'os = "windows"': "environment.os = windows",
    '[[environment.mcp_servers]]\nname = "files"': "environment.mcp_servers",
}
NAMED = {
    "storage_mb = 10": "environment.storage_mb",
    'skills_dir = "/skills"': "environment.skills_dir",
    'artifacts = ["out.txt"]': "artifacts",
    'agent = { user = "me" }': "agent.user",
    'verifier = { user = "me" }': "verifier.user",
    'verifier = { collect = ["x"] }': "verifier.collect",
    'agent = { network_mode = "public" }': "agent.network_mode",
}
STEP_SETTINGS = {
    "artifacts": 'artifacts = ["out.txt"]',
    "agent.user": '[steps.agent]\nuser = "me"',
    "agent.network_mode": '[steps.agent]\nnetwork_mode = "public"',
    "verifier.user": '[steps.verifier]\nuser = "me"',
    "verifier.network_mode": '[steps.verifier]\nnetwork_mode = "public"',
    "verifier.collect": '[steps.verifier]\ncollect = ["x"]',
}
FILES = {
    "environment/docker-compose.yaml": "environment/docker-compose.yaml",
    "trajectory.json": "trajectory.json",
}


def read(folder, settings, images):
    """Read a task with settings of its environment, or of the whole file."""
    write_task(folder, "odd")
    toml = folder / "odd" / "task.toml"
    if settings.startswith(("agent", "verifier", "artifacts")):
        toml.write_text(f'{settings}\n[environment]\nnetwork_mode = "no-network"\n')
    elif "verifier" in settings:
        toml.write_text(f"{settings}\n")
    else:
        toml.write_text(f"[environment]\n{settings}\n")
    return read_folder(folder / "odd", "odd", images)


@pytest.mark.parametrize("images", [False, True], ids=["machine", "image"])
@pytest.mark.parametrize("settings", LEFT_OUT)
def test_a_task_that_needs_what_no_workspace_has_is_left_out_by_name(tmp_path, settings, images):
    assert read(tmp_path, settings, images).refused == [LEFT_OUT[settings]]


@pytest.mark.parametrize("images", [False, True], ids=["machine", "image"])
@pytest.mark.parametrize("settings", NAMED)
def test_a_setting_without_a_counterpart_is_named(tmp_path, settings, images):
    task = read(tmp_path, settings, images)
    assert task.refused == []
    assert [part for part in task.lost if not part.startswith("Dockerfile: FROM")] == [
        NAMED[settings]
    ]


def read_step(folder, settings, head=""):
    """Read a task with one step, and settings of it."""
    write_task(folder, "odd")
    step = folder / "odd/steps/first"
    step.mkdir(parents=True)
    (step / "instruction.md").write_text("Do it.")
    (folder / "odd/task.toml").write_text(f'{head}\n[[steps]]\nname = "first"\n{settings}\n')
    return read_folder(folder / "odd", "odd", True)


@pytest.mark.parametrize("name", STEP_SETTINGS)
def test_a_setting_of_a_step_without_a_counterpart_is_named(tmp_path, name):
    task = read_step(tmp_path, STEP_SETTINGS[name])
    assert (task.refused, task.lost) == ([], [f"steps.first.{name}"])


@pytest.mark.parametrize(
    ("head", "settings", "refusal"),
    [
        (
            "",
            '[steps.verifier]\nenvironment_mode = "separate"',
            "a verifier in a container of its own",
        ),
        ('multi_step_reward_strategy = "most"', "", "multi_step_reward_strategy = most"),
    ],
)
def test_a_step_that_needs_what_no_workspace_has_leaves_its_task_out(
    tmp_path, head, settings, refusal
):
    assert read_step(tmp_path, settings, head).refused == [refusal]


def test_files_that_need_more_than_one_container_are_named(tmp_path):
    write_task(tmp_path, "odd")
    for name in FILES:
        (tmp_path / "odd" / name).write_text("{}")
    (tmp_path / "odd" / "tests" / "test.sh").unlink()
    task = read_folder(tmp_path / "odd", "odd", True)
    assert task.refused == ["environment/docker-compose.yaml", "a verifier without tests/test.sh"]
    assert task.lost == ["trajectory.json"]


def test_network_memory_and_cores_are_those_of_the_task(tmp_path):
    settings = 'cpus = 0.5\nnetwork_mode = "allowlist"\nallowed_hosts = ["pypi.org"]\nmemory_mb = 64\nenv = { A = "1" }'
    task = read(tmp_path, settings, True)
    assert (task.cpus, task.memory_mb, task.allowed_hosts) == (0.5, 64.0, ("pypi.org",))
    assert task.variables == {"A": "1"}


CHECK = """
[environment.healthcheck]
command = "{}"
interval_sec = {}
retries = 1
"""


async def played_with_check(folder, command, interval):
    """Return the run of a task's own solution, with a health check."""
    write_task(folder, "checked", environment=CHECK.format(command, interval))
    env = HarborEnvironment(folder / "checked")
    return (await Taskset("checked", env.all_tasks()).run(ScriptedAgent(env.oracle))).runs[0]


@needs_bubblewrap
async def test_a_health_check_is_waited_for(tmp_path):
    run = await played_with_check(tmp_path, "test -e ready || { touch ready; exit 1; }", 30)
    assert run.reward == 1.0, run.trace.error


@needs_bubblewrap
async def test_a_workspace_that_stays_unhealthy_fails_the_run_in_one_sentence(tmp_path):
    run = await played_with_check(tmp_path, "echo no database; exit 3", 0.5)
    assert run.failure_kind == "environment"
    assert "not healthy within 0.5 s: its health check had status 3: no database" in run.error


@pytest.mark.parametrize(
    "settings",
    ["retries = 3", 'command = "true"\ninterval_sec = "soon"', 'command = "true"\nretries = inf'],
)
def test_a_malformed_health_check_is_one_sentence(tmp_path, settings):
    with pytest.raises(UsageError, match=r"healthcheck of task\.toml"):
        read(tmp_path, f"[environment.healthcheck]\n{settings}", True).health_check  # noqa: B018


@pytest.mark.parametrize(
    ("size", "megabytes"), [("2G", 2048), ("512M", 512), ("1024k", 1), ("odd", None)]
)
def test_an_older_task_has_its_memory(tmp_path, size, megabytes):
    assert read(tmp_path, f'memory = "{size}"', True).memory_mb == megabytes


def test_a_step_has_a_health_check_of_its_own(tmp_path):
    task = read_step(tmp_path, '[steps.healthcheck]\ncommand = "true"\nstart_period_sec = 7')
    assert task.lost == []
    assert task.steps[0].health_check.seconds == 22.0


PAGE = (ROOT / "docs/integrations/harbor.md").read_text()
"""Settings of the format, each with the word by which the page's table names it."""
ROWS = {
    **{
        setting: setting
        for setting in (
            "network_mode",
            "allowed_hosts",
            "memory_mb",
            "cpus",
            "workdir",
            "storage_mb",
        )
    },
    **{
        setting: setting
        for setting in (
            "healthcheck",
            "skills_dir",
            "docker_image",
            "artifacts",
            "collect",
            "timeout_sec",
        )
    },
    **{
        setting: setting
        for setting in (
            "min_reward",
            "multi_step_reward_strategy",
            "[[steps]]",
            "[metadata]",
            "reward.json",
        )
    },
    **{
        setting: setting
        for setting in (
            "reward.txt",
            "tests/",
            "solution/",
            "workdir/",
            "setup.sh",
            "environment_mode",
        )
    },
    "gpus": "GPUs",
    "tpu": "TPUs",
    "mcp_servers": "MCP servers",
    "os = windows": "Windows",
    "docker-compose.yaml": "`docker-compose.yaml`",
    "user": "users",
    "build_timeout_sec": "build_timeout_sec",
    "gpu_types": "gpu_types",
    "allow_internet": "allow_internet",
    "memory": "`memory = ",
    "storage": "`storage` |",
}


@pytest.mark.parametrize("setting", ROWS)
def test_the_page_has_a_row_for_each_setting(setting):
    table = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert any(ROWS[setting] in line for line in table)
