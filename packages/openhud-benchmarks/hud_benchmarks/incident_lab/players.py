"""Hand-written agents for the lab: the oracle, alone (`oracle`) and as a team (`team`), and a novice.

An investigation is a generator: it yields tool calls, is sent what the tools say, and returns the answer. It sees
what any agent sees, and nothing of what was injected.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Generator
from typing import Any

from hud.agents import Agent, ScriptedAgent
from hud.trace import ChatMessage, Completion, ToolCall, ToolSpec, Trace

Call = tuple[str, dict[str, str]]
Report = tuple[str, str]
"""A sign and a detail."""
Look = Generator[Call, str, Report]
Ask = Callable[[str, str, str], Look]
"""(area, service, since) -> what a look into that area finds."""

ENTRIES, WAITING, SESSIONS, BACKLOG = 50, 2, 10, 12
NOTHING: Report = ("none", "none")


def match(pattern: str, text: str) -> str:
    """Return the group of a pattern's first match. Raises `ValueError` where it does not occur."""
    for value in re.findall(pattern, text):
        return str(value)
    raise ValueError(f"{pattern!r} does not occur in {text!r}")


def rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a tool's table."""
    names, *lines = (line.split(" | ") for line in text.splitlines())
    return [dict(zip(names, line, strict=False)) for line in lines if len(line) == len(names)]


def look_at_errors(service: str, since: str) -> Look:
    """Find the error that a service reported most since the alert, and whom it blames."""
    text = yield "tracker_list_issues", {"service": service}
    recent = [row for row in rows(text) if row["last_seen"] >= since]
    if not recent:
        return NOTHING
    worst = min(recent, key=lambda row: (-int(row["events"]), row["issue"]))
    blamed = re.match(r"(\w+)(?:: | answered | refused )", worst["message"])
    services = ("storefront", "catalog", "orders", "payments", "bank", "worker", "cache")
    return worst["error"], blamed[1] if blamed and blamed[1] in services else "none"


def look_at_metrics(service: str, since: str) -> Look:
    """Find a memo that grows, or a pool that is empty."""
    del since
    memos = rows((yield "tracker_memos", {"service": service}))
    if memos and float(memos[0]["high"]) >= ENTRIES:
        return "memory_grows", memos[0]["memo"]
    pools = rows((yield "tracker_pool_usage", {}))
    waiting = [float(row["most_waiting"] or 0) for row in pools if row["service"] == service]
    return ("pool_full" if waiting and waiting[0] > WAITING else "normal"), "none"


def look_at_database(service: str, since: str) -> Look:
    """Find transactions that wait with a connection in hand, or an index that is gone."""
    del since
    for row in rows((yield "database_idle_in_transaction", {"service": service})):
        route = re.search(r"/\* (.+?) \*/", row["query"])
        if route and int(row["times_seen"]) >= SESSIONS:
            return "idle_transactions", route[1]
    query = (
        f"SELECT count(*) AS slow FROM pg_log WHERE service = '{service}' AND (message LIKE '%duration:%' OR "
        "message LIKE '%statement timeout%')"
    )
    slow = rows((yield "database_execute_sql", {"query": query}))
    if slow[0]["slow"] != "0":
        for row in rows((yield "database_list_migrations", {})):
            dropped = re.search(r"DROP INDEX (\w+)", row["statement"])
            if dropped:
                return "missing_index", dropped[1]
    return "normal", "none"


def look_at_changes(service: str, since: str) -> Look:
    """Find the last change of the day."""
    del since
    changes = rows((yield "deploy_changes", {"service": service}))
    deployments = rows((yield "deploy_recent_deployments", {}))
    today = max([row["time"][:10] for row in [*changes, *deployments]], default="")
    if not changes or changes[0]["time"][:10] != today:
        return NOTHING
    return changes[0]["kind"], changes[0]["what"]


def look_at_queue(service: str, since: str) -> Look:
    """Find the message that blocks the queue."""
    del service, since
    info = yield "deploy_cache_info", {}
    if "error | " in info:
        return "unreachable", "none"
    queues = rows((yield "deploy_list_queues", {}))
    if sum(int(row["messages"]) for row in queues) < BACKLOG:
        return "moving", "none"
    for name in sorted(
        (row["queue"] for row in queues), key=lambda name: not name.endswith(":taken")
    ):
        first = rows((yield "deploy_peek_queue", {"queue": name}))
        return "blocked", json.loads(first[0]["message"])["id"]
    return "moving", "none"


def look_at_containers(service: str, since: str) -> Look:
    """Find what became of a service's pod, and of its certificate."""
    del since
    pod = rows((yield "cluster_pods_of", {"service": service}))[-1]
    if pod["reason"] == "Evicted":
        return "evicted", pod["pod"]
    if pod["restarts"] != "0":
        return ("oom_killed" if pod["last_reason"] == "OOMKilled" else "crash_loop"), pod["pod"]
    secrets = rows((yield "cluster_get_secrets", {}))
    for row in secrets:
        if row["mounted_by"] == service:
            described = rows((yield "cluster_describe_secret", {"secret": row["secret"]}))[0]
            if described["not_after"] < described["now"]:
                return "certificate_expired", described["serial"]
    return "running", "none"


LOOKS = {
    "errors": look_at_errors, "metrics": look_at_metrics, "database": look_at_database,
    "changes": look_at_changes, "queue": look_at_queue, "containers": look_at_containers,
}  # fmt: skip


def investigate(page: str, ask: Ask) -> Generator[Call, str, str]:
    """Follow the blame from the storefront to where it ends, and look there for the cause."""
    since = match(r"Since (\S+) UTC", page)
    if "fulfilment" in page:
        _, message = yield from ask("queue", "worker", since)
        return finding("worker", "poisoned_message", message)
    path, sign = ["storefront"], "none"
    for _ in range(4):
        sign, blamed = yield from ask("errors", path[-1], since)
        if blamed == "none" or blamed in path:
            break
        path.append(blamed)
    service = path[-1]
    if sign in ("PoolTimeout", "QueryCanceled"):
        seen, detail = yield from ask("database", service, since)
        cause = "pool_exhaustion" if seen == "idle_transactions" else "dropped_index"
        return finding(service, cause, detail)
    if sign in ("ConnectionError", "TimeoutError"):
        service = "cache"
    seen, detail = yield from ask("containers", service, since)
    if seen == "evicted":
        return finding(service, "dead_dependency", detail)
    if seen == "certificate_expired":
        return finding(service, "expired_certificate", detail)
    if seen == "oom_killed":
        _, memo = yield from ask("metrics", service, since)
        return finding(service, "memory_leak", memo)
    if sign == "none" and len(path) > 1:
        service = path[
            -2
        ]  # Who is blamed has nothing to complain of: it was asked for something wrong.
    kind, what = yield from ask("changes", service, since)
    return finding(service, "wrong_flag" if kind == "flag" else "bad_deploy", what)


def finding(service: str, cause: str, culprit: str) -> str:
    """Return a finding as an answer."""
    return json.dumps({"service": service, "cause": cause, "culprit": culprit})


def alone(page: str) -> Generator[Call, str, str]:
    """The oracle with all tools in hand."""
    return (yield from investigate(page, lambda area, service, since: LOOKS[area](service, since)))


def leading(page: str) -> Generator[Call, str, str]:
    """The oracle that asks specialists."""

    def ask(area: str, service: str, since: str) -> Look:
        del since
        report = json.loads((yield area, {"service": service}))
        return report["sign"], report["detail"]

    return (yield from investigate(page, ask))


def reporting(area: str) -> Callable[[str], Generator[Call, str, str]]:
    """The specialist of an area that makes no mistakes."""

    def report(prompt: str) -> Generator[Call, str, str]:
        service = match(r"Look at (\w+)", prompt)
        since = match(r"Since (\S+) UTC", prompt)
        sign, detail = yield from LOOKS[area](service, since)
        return json.dumps({"sign": sign, "detail": detail})

    return report


def jumping(page: str) -> Generator[Call, str, str]:
    """The novice: takes the newest deployment for the culprit, as most of us once did."""
    del page
    newest = rows((yield "deploy_recent_deployments", {}))[0]
    return finding(newest["service"], "bad_deploy", newest["release"])


def blaming(page: str) -> Generator[Call, str, str]:
    """The novice with a team: asks one question and believes the answer."""
    del page
    report = json.loads((yield "changes", {"service": "orders"}))
    return finding("orders", "bad_deploy", report["detail"])


class Script:
    """Plays investigations turn by turn, in the shape that `ScriptedAgent` wants."""

    def __init__(self, begin: Callable[[str], Generator[Call, str, str]]) -> None:
        self.begin = begin
        self.running: dict[int, Generator[Call, str, str]] = {}
        self.calls = itertools.count(1)

    def __call__(
        self, messages: list[ChatMessage], tools: list[ToolSpec], trace: Trace
    ) -> Completion:
        del tools
        last: Any = messages[-1]
        try:
            if last["role"] == "tool":
                tool, arguments = self.running[id(trace)].send(last["content"])
            else:
                self.running[id(trace)] = self.begin(last["content"])
                tool, arguments = next(self.running[id(trace)])
        except StopIteration as end:
            self.running.pop(id(trace))
            return Completion(content=end.value)
        call = ToolCall(id=f"call_{next(self.calls)}", name=tool, arguments=arguments)
        return Completion(tool_calls=[call], finish_reason="tool_calls")


def led_by(lead: Callable[[str], Generator[Call, str, str]], name: str) -> ScriptedAgent:
    """Return a lead with a team of scripted specialists."""
    agent = ScriptedAgent(Script(lead), name=name)
    agent.subagents = {area: ScriptedAgent(Script(reporting(area)), name=area) for area in LOOKS}
    return agent


oracle: Agent = ScriptedAgent(Script(alone), name="oracle")
"""Alone; solves every incident."""
team: Agent = led_by(leading, "oracle-team")
"""Lead and specialists; solves every incident."""
novice: Agent = ScriptedAgent(Script(jumping), name="novice")
"""Alone; blames the newest deployment."""
novice_team: Agent = led_by(blaming, "novice-team")
"""Lead and specialists; blames the last change of `orders`."""
