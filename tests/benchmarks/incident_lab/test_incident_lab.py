"""The incident lab: every incident can be solved, nothing but solving pays, and the tools tell no secrets."""

import contextlib
import gzip
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import pytest

from hud import Environment
from hud.agents import ScriptedAgent
from hud.eval import LocalRuntime, NullRecorder, Taskset
from hud.trace import Completion, ToolCall
from hud_benchmarks.incident_lab import flat as alone
from hud_benchmarks.incident_lab import hierarchical as led
from hud_benchmarks.incident_lab import players, servers
from hud_benchmarks.incident_lab.desk import servers as desk_servers
from hud_benchmarks.incident_lab.desk.servers import Desk
from hud_benchmarks.incident_lab.grading import grade_finding, grade_report
from hud_benchmarks.incident_lab.incidents import incidents
from hud_benchmarks.incident_lab.lab.facts import AREAS, SERVICES, Fact
from hud_benchmarks.incident_lab.lab.faults import FAULTS
from hud_benchmarks.incident_lab.lab.finding import CAUSES, Finding
from hud_benchmarks.incident_lab.lab.recording import opened

SHOP = Path(players.__file__).parent / "shop"
ALL = list(incidents().values())


@pytest.fixture(scope="module")
def flat():
    return alone.tasks


@pytest.fixture(scope="module")
def hierarchical():
    return led.tasks


async def play(tasks, agent):
    return await tasks.run(agent, recorder=NullRecorder(), runtime=LocalRuntime(), max_concurrent=4)


def test_there_are_three_incidents_of_each_of_eight_causes():
    assert {one.name for one in ALL} == set(FAULTS)
    causes = [one.finding.cause for one in ALL]
    assert {cause: causes.count(cause) for cause in CAUSES} == dict.fromkeys(CAUSES, 3)


def test_no_culprit_is_known_before_it_is_found():
    recorded = {one.name: gzip.decompress(one.file.read_bytes()) for one in ALL}
    for incident in ALL:
        assert incident.finding.culprit not in incident.page
        culprit = incident.finding.culprit.removeprefix("GET ").encode()
        assert [name for name, told in recorded.items() if culprit in told] == [incident.name]


async def test_who_never_stops_is_stopped_after_15_steps(flat):
    def ask(messages, tools, trace):
        call = ToolCall(id=str(len(messages)), name="cluster_get_pods")
        return Completion(tool_calls=[call])

    job = await play(flat.filter([flat[0].slug]), ScriptedAgent(ask))
    (run,) = job.runs
    assert sum(step.source == "agent" for step in run.trace.steps) == 15
    assert run.reward == 0.0


@pytest.mark.slow
async def test_the_oracle_finds_every_fault_alone(flat):
    job = await play(flat, players.oracle)
    assert {run.slug: run.reward for run in job.runs} == {one.name: 1.0 for one in ALL}
    turns = [sum(step.source == "agent" for step in run.trace.steps) for run in job.runs]
    assert max(turns) <= 15


@pytest.mark.slow
async def test_the_oracle_finds_every_fault_with_a_team_whose_reports_are_true(hierarchical):
    job = await play(hierarchical, players.team)
    assert {run.slug: run.reward for run in job.runs} == {one.name: 1.0 for one in ALL}
    reports = [child for run in job.runs for child in run.children]
    assert {report.reward for report in reports} == {1.0}
    assert {report.task.env for report in reports} == {f"incident-{area}" for area in players.LOOKS}


@pytest.mark.slow
async def test_novices_find_little(flat, hierarchical):
    assert (await play(flat, players.novice)).reward <= 0.3
    assert (await play(hierarchical, players.novice_team)).reward <= 0.3


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "the database",
        "{}",
        json.dumps([one.finding.text() for one in ALL]),
        " ".join(one.finding.text() for one in ALL),
        json.dumps({"service": list(SERVICES), "cause": list(CAUSES), "culprit": "*"}),
        json.dumps({"service": ",".join(SERVICES), "cause": ",".join(CAUSES), "culprit": ""}),
        '{"service": ".*", "cause": ".*", "culprit": ".*"}',
    ],
)
def test_naming_nothing_or_everything_is_worth_nothing(answer):
    assert {grade_finding(answer, one.finding).reward for one in ALL} == {0.0}


async def test_saying_everything_is_worth_nothing_in_either_environment(flat, hierarchical):
    agent = ScriptedAgent(lambda run: " ".join(one.finding.text() for one in ALL))
    for tasks in (flat, hierarchical):
        some = tasks.filter([task.slug for task in list(tasks)[::6]])
        assert {run.reward for run in (await play(some, agent)).runs} == {0.0}


@pytest.mark.parametrize("incident", ALL, ids=lambda one: one.name)
def test_an_answer_beside_the_truth_is_worth_nothing(incident):
    truth = incident.finding
    others = [one.finding for one in ALL if one.finding.service != truth.service]
    assert grade_finding(truth.text(), truth).reward == 1.0
    for other in others:
        assert grade_finding(other.text(), truth).reward == 0.0
        # The truth beside something else is no finding either, in whichever order.
        for both in (truth.text() + other.text(), other.text() + truth.text()):
            assert grade_finding(both, truth).reward == 0.0
        wrong_service = replace(truth, service=other.service)
        assert grade_finding(wrong_service.text(), truth).reward == 0.0
    twice = truth.text()[:-1] + ', "culprit": "something"}'
    assert grade_finding(twice, truth).reward == 0.0
    more = truth.text()[:-1] + ', "or": "something"}'
    assert grade_finding(more, truth).reward == 0.0
    assert grade_finding(replace(truth, culprit="something").text(), truth).reward == pytest.approx(
        0.3
    )
    wrong_cause = next(cause for cause in CAUSES if cause != truth.cause)
    assert grade_finding(replace(truth, cause=wrong_cause).text(), truth).reward == pytest.approx(
        0.1
    )


@pytest.mark.slow
def test_no_constant_answer_pays():
    culprits = {one.finding for one in ALL}
    constants = [
        Finding(service, cause, culprit.culprit)
        for service in SERVICES
        for cause in CAUSES
        for culprit in culprits
    ]
    best = max(
        sum(grade_finding(each.text(), one.finding).reward for one in ALL) / len(ALL)
        for each in constants
    )
    assert best <= 0.15


def test_a_specialist_is_paid_for_true_reports_only():
    truth = Fact("deploy", "1.2.3")

    def worth(**told):
        return grade_report(json.dumps(told), truth).reward

    assert worth(sign="deploy", detail="1.2.3") == 1.0
    assert worth(sign="deploy", detail="1.2.4") == 0.3
    assert worth(sign="flag", detail="1.2.3") == 0.0
    assert worth(sign="deploy") == 0.0
    assert grade_report('{"sign": "none", "detail": "none"}', Fact("none")).reward == 1.0
    assert grade_report("", Fact("none")).reward == 0.0


@pytest.mark.parametrize("incident", ALL, ids=lambda one: one.name)
def test_where_the_culprit_shows_the_facts_say_so(incident):
    finding = incident.finding
    assert incident.facts[AREAS[finding.cause]][finding.service].detail == finding.culprit


@pytest.mark.slow
def test_about_100_tools_answer_from_every_recording():
    count = 0
    for name in desk_servers.TOOLS:
        for incident in ALL:
            desk = Desk(name, incident.file)
            texts = {
                query.name: query.answer(desk.database, dict.fromkeys(query.names, "orders"))
                for query in desk.queries.values()
            }
            assert all(texts.values())
        count += len(desk.tools()) - 1
    assert 95 <= count <= 115


def test_free_sql_reads_the_console_and_nothing_else():
    desk = Desk("database", ALL[0].file)
    assert "orders_pkey" in desk.call(
        "execute_sql", {"query": "SELECT indexname FROM pg_indexes LIMIT 50"}
    )
    forbidden = [
        "SELECT * FROM deployments",
        "SELECT * FROM page",
        "SELECT name FROM sqlite_master",
        "DELETE FROM pg_indexes",
        "DROP TABLE pg_indexes",
        "ATTACH '/etc/passwd' AS x",
        "PRAGMA query_only = OFF",
        "SELECT 1; SELECT 2",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "SELECT randomblob(900000000)",
        "SELECT hex(zeroblob(400000000))",
        "SELECT replace(hex(zeroblob(60000)), '0', 'xxxxxxxxxxxxxxxxxxxx')",
        "SELECT hex(zeroblob(100000))",
        "not SQL",
    ]
    for query in forbidden:
        with pytest.raises(ValueError, match="There are"):
            desk.call("execute_sql", {"query": query})
    # The console still works afterwards.
    assert desk.call("list_tables", {}).startswith("table_name")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT hex(randomblob(8000)) || n AS t FROM r ORDER BY t",
        "SELECT max(hex(zeroblob(8000)) || n) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) FROM r",
    ],
)
def test_free_sql_over_long_texts_is_bounded_in_time(query):
    """Steps alone do not bound it: a sort of long texts took minutes, with gigabytes of files."""
    desk = Desk("database", ALL[0].file)
    numbers = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 1000000)"
    began = monotonic()
    with pytest.raises(ValueError, match="interrupted"):
        desk.call("execute_sql", {"query": f"{numbers} {query}"})
    assert monotonic() - began < 10


@pytest.mark.parametrize("name", desk_servers.TOOLS)
def test_words_that_no_query_takes_are_a_wrong_call(name):
    desk = Desk(name, ALL[0].file)
    for query in desk.queries.values():
        with contextlib.suppress(ValueError):
            desk.call(query.name, dict.fromkeys(query.names, "x%" * 100_000))


def test_wrong_calls_say_what_is_wrong():
    desk = Desk("tracker", ALL[0].file)
    for name, given, told in (
        ("nothing", {}, "no tool 'nothing'"),
        ("list_issues", {}, "'service' is missing"),
        ("list_issues", {"service": "orders", "colour": "red"}, "no argument 'colour'"),
    ):
        with pytest.raises(ValueError, match=told):
            desk.call(name, given)


def test_recordings_do_not_say_what_was_done():
    for incident in ALL:
        database = opened(incident.file)
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        assert not tables & {"fault", "finding", "facts"}
        with pytest.raises(Exception, match="readonly|read-only|query_only"):
            database.execute("DELETE FROM page")


async def test_agents_see_neither_the_incident_nor_the_way_to_open_another(flat, hierarchical):
    seen = {}

    async def look(run):
        seen[run.task.env] = {spec.name: spec for spec in run.tools}
        return ""

    one = [tasks.filter([tasks[0].slug]) for tasks in (flat, hierarchical)]
    for tasks in one:
        await play(tasks, ScriptedAgent(look))
    assert len(seen["incident-flat"]) >= 95
    assert not [name for name in seen["incident-flat"] if "open_recording" in name]
    assert set(seen["incident-lead"]) == set(players.LOOKS)
    for spec in seen["incident-lead"].values():
        assert set(spec.parameters["properties"]) == {"service"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("area", "found"), [(None, {"cluster_get_pods"}), ("containers", {"cluster_get_pods"})]
)
async def test_a_team_names_its_own_servers(area, found, tmp_path, monkeypatch):
    program = {
        "command": "${LAB_PYTHON}",
        "args": ["-m", "hud_benchmarks.incident_lab.desk", "cluster", str(ALL[0].file)],
    }
    told = {"mcpServers": {"cluster": program}, "areas": {"containers": {"cluster": ["get_pods"]}}}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps(told))
    monkeypatch.setenv("LAB_PYTHON", sys.executable)
    monkeypatch.setattr(servers, "REAL_SERVERS", str(file))
    env = Environment("real")
    desk = servers.Desk(env, area)

    @env.template
    async def look():
        await desk.open(ALL[0])
        yield "look"
        yield 1.0

    seen = []

    async def note(run):
        seen.append({spec.name for spec in run.tools})
        return ""

    await play(Taskset("real", [look()]), ScriptedAgent(note))
    assert found <= seen[0]
    assert (len(seen[0]) == 1) is (area is not None)


@pytest.mark.parametrize("damage", [None, b"", b"no recording"])
async def test_a_recording_that_cannot_be_read_is_the_environments_fault(damage, tmp_path):
    env = Environment("damaged")
    desk = servers.Desk(env, "queue")
    file = tmp_path / "damaged.sqlite.gz"
    if damage is not None:
        file.write_bytes(damage)

    @env.template
    async def look():
        await desk.open(SimpleNamespace(name="damaged", file=file))
        yield "look"
        yield 1.0

    (run,) = (await play(Taskset("damaged", [look()]), ScriptedAgent(lambda run: ""))).runs
    assert run.failure_kind == "environment"
    assert run.reward is None
    assert "is no recording" in run.error


@pytest.mark.slow
async def test_a_pair_of_jobs_gives_a_difference_with_its_interval(flat, hierarchical):
    from hud_benchmarks.incident_lab.compare import paired, report

    some = [
        tasks.filter([task.slug for task in list(tasks)[::3]]) for tasks in (flat, hierarchical)
    ]
    pairs = paired(
        (await play(some[0], players.novice)).runs, (await play(some[1], players.team)).runs
    )
    assert pairs.incidents == 8
    assert pairs.hierarchical.reward == 1.0
    assert 0.5 <= pairs.low <= pairs.difference <= pairs.high <= 1.0
    assert pairs.worse == 0
    assert set(pairs.specialists) <= set(players.LOOKS)
    assert "hierarchical minus flat" in report(pairs)


@pytest.mark.slow
async def test_the_servers_speak_to_other_clients_too():
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    arguments = ["-m", "hud_benchmarks.incident_lab.desk", "cluster", str(ALL[0].file)]
    program = StdioServerParameters(command=sys.executable, args=arguments)
    async with stdio_client(program) as streams, ClientSession(*streams) as session:
        await session.initialize()
        assert len((await session.list_tools()).tools) >= 20
        answer = await session.call_tool("get_pods", {})
        assert "storefront-" in answer.content[0].text


@pytest.mark.slow
def test_the_ingestion_endpoint_takes_what_the_official_sdk_sends():
    from hud_benchmarks.incident_lab.lab.ingest import Ingest

    ingest = Ingest()
    code = (
        "import sentry_sdk, sys; sentry_sdk.init(sys.argv[1], release='orders@1.2.3', traces_sample_rate=1.0, auto_enabling_integrations=False)\n"
        "with sentry_sdk.start_transaction(name='/orders'):\n"
        "    try: {}['carrier']\n"
        "    except KeyError as error: sentry_sdk.capture_exception(error)\n"
        "sentry_sdk.flush()"
    )
    try:
        subprocess.run([sys.executable, "-c", code, ingest.dsn], check=True, timeout=60)
        (event,) = ingest.taken("event")
        (transaction,) = ingest.taken("transaction")
    finally:
        ingest.close()
    assert event["exception"]["values"][-1]["type"] == "KeyError"
    assert event["release"] == transaction["release"] == "orders@1.2.3"


async def test_the_cluster_restarts_what_ends_and_kills_what_grows(tmp_path):
    import asyncio

    from hud_benchmarks.incident_lab.lab.cluster import Cluster, Service
    from hud_benchmarks.incident_lab.lab.recording import Recording

    recording = Recording()
    cluster = Cluster(tmp_path, recording, random.Random(0), {})
    grows = "import time; kept = b'x' * 90_000_000; time.sleep(60)"
    cluster.declare(Service("grows", [sys.executable, "-c", grows], {}, 0, memory_limit=50 * 2**20))
    cluster.declare(Service("ends", [sys.executable, "-c", "raise SystemExit(3)"], {}, 0))
    for name in ("grows", "ends"):
        await cluster.start(name)
    watch = asyncio.create_task(cluster.watch())
    try:
        async with asyncio.timeout(60):
            while not all(  # noqa: ASYNC110
                service.container.restarts for service in cluster.services.values()
            ):
                await asyncio.sleep(0.1)
    finally:
        watch.cancel()
        await cluster.end()
    killed, ended = (service.container for service in cluster.services.values())
    assert (killed.last_reason, killed.exit_code) == ("OOMKilled", 137)
    assert (ended.last_reason, ended.exit_code) == ("Error", 3)
    assert {"OOMKilling", "BackOff"} <= {row["reason"] for row in recording.rows["k8s_events"]}


@pytest.mark.slow
def test_containers_do_not_outlive_a_killed_lab(tmp_path):
    import psutil

    code = f"""
import asyncio, os, random, signal, sys
from pathlib import Path
from hud_benchmarks.incident_lab.lab.cluster import Cluster, Service
from hud_benchmarks.incident_lab.lab.recording import Recording

async def main():
    cluster = Cluster(Path({str(tmp_path)!r}), Recording(), random.Random(0), {{}})
    cluster.declare(Service("sleeps", [sys.executable, "-c", "import time; time.sleep(600)"], {{}}, 0))
    await cluster.start("sleeps")
    print(cluster.services["sleeps"].container.process.pid, flush=True)
    await asyncio.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    killed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert killed.returncode == -9, killed.stderr
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(killed.stdout)).wait(timeout=20)


@pytest.mark.parametrize(
    "name", [name for name, fault in FAULTS.items() if fault.cause == "bad_deploy"]
)
def test_a_bad_release_differs_from_the_good_one_in_one_place(name, tmp_path):
    from hud_benchmarks.incident_lab.lab.cluster import Cluster
    from hud_benchmarks.incident_lab.lab.recording import Recording

    class Deploying:
        async def deploy(self, service, message, change):
            image = cluster.build(service, "1.0.0", change)
            return (image / "shop" / f"{service}.py").read_text()

    cluster = Cluster(tmp_path, Recording(), random.Random(0), {})
    import asyncio

    fault = FAULTS[name]
    changed = asyncio.run(fault.inject(Deploying())).splitlines()
    original = (SHOP / f"{fault.service}.py").read_text().splitlines()
    assert sum(a != b for a, b in zip(changed, original, strict=True)) == 1


@pytest.mark.parametrize("incident", ALL[::5], ids=lambda one: one.name)
def test_a_variant_is_the_same_incident_with_other_names(incident, tmp_path):
    from hud_benchmarks.incident_lab.solvable import problem
    from hud_benchmarks.incident_lab.vary import vary

    told = {"page": incident.page, "finding": incident.finding.__dict__, "facts": {}}
    for area, by_service in incident.facts.items():
        told["facts"][area] = {name: [fact.sign, fact.detail] for name, fact in by_service.items()}
    recording, known = vary(incident.file, told, random.Random(0))
    file = tmp_path / "variant.sqlite.gz"
    file.write_bytes(gzip.compress(recording))
    finding = Finding(**known["finding"])
    assert (finding.service, finding.cause) == (incident.finding.service, incident.finding.cause)
    assert finding.culprit != incident.finding.culprit
    assert incident.finding.culprit.encode() not in recording
    facts = {
        area: {name: Fact(*fact) for name, fact in by_service.items()}
        for area, by_service in known["facts"].items()
    }
    assert problem(file, known["page"], finding, facts) is None
    # An incident that is not what it is said to be is no task.
    wrong = replace(finding, culprit="something")
    assert "the oracle finds" in problem(file, known["page"], wrong, facts)
