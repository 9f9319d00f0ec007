"""The incident lab for a policy of 8,192 tokens of context: some of the tools, and an apprentice that it first imitates.

Import it with `INCIDENT_LAB` set to the folder that `write_incidents` made.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator, Generator

from hud import Environment, Taskset
from hud.agents import ScriptedAgent
from hud.environment import Answer
from hud_benchmarks.incident_lab import flat, players
from hud_benchmarks.incident_lab.grading import grade_finding
from hud_benchmarks.incident_lab.incidents import incidents
from hud_benchmarks.incident_lab.lab.finding import CAUSES
from hud_benchmarks.incident_lab.servers import Desk
from incident_variants import HELD_OUT_PREFIX

NEEDED: dict[str, tuple[str, ...]] = {
    "tracker": ("list_issues", "memos", "pool_usage"),
    "database": ("idle_in_transaction", "execute_sql", "list_migrations"),
    "deploy": ("changes", "recent_deployments", "cache_info", "list_queues", "peek_queue"),
    "cluster": ("pods_of", "get_secrets", "describe_secret"),
}
"""The 14 of the 109 tools that the oracle calls, by server: every incident can be solved with them. Their schemas take 773 tokens
of a prompt, which every run repeats; those of all take 5,806."""
JUMPS, QUITS, SLIPS = 0.2, 0.05, 0.2
"""Shares of the apprentice: the newest deployment is blamed without a look, guesses after a result, and wrong culprits at the end."""


env = Environment("incident-policy", version="1.0.0")
desk = Desk(env, tools=NEEDED)


@env.template(id="diagnose", description="Find the fault behind an alert.")
async def diagnose(incident: str) -> AsyncGenerator[object, Answer[str]]:
    """One recorded incident, by name."""
    recorded = incidents()[incident]
    await desk.open(recorded)
    answer = yield flat.prompt(recorded)
    yield grade_finding(answer, recorded.finding)


def tasks(*, held_out: bool) -> Taskset:
    """Return the incidents of one split."""
    settings = {"agent_config": {"max_steps": flat.MAX_STEPS}}
    return Taskset(
        "incidents-held-out" if held_out else "incidents",
        [
            diagnose(incident=name).model_copy(update={"slug": name, **settings})
            for name in incidents()
            if name.startswith(HELD_OUT_PREFIX) == held_out
        ],
    )


def apprentice(seed: int) -> ScriptedAgent:
    """Return the imperfect agent that the base imitates: the lab's oracle, with bad habits."""
    luck = random.Random(seed)

    def investigate(page: str) -> Generator[players.Call, str, str]:
        if luck.random() < JUMPS:
            return (yield from players.jumping(page))
        investigation = players.alone(page)
        call, service, cells = next(investigation), "storefront", ["unknown"]
        while True:
            service = call[1].get("service", service)
            text = yield call
            cells = [cell for row in players.rows(text) for cell in row.values() if cell] or cells
            if luck.random() < QUITS:
                return players.finding(service, luck.choice(list(CAUSES)), luck.choice(cells))
            try:
                call = investigation.send(text)
            except StopIteration as end:
                answer = json.loads(end.value)
                if luck.random() < SLIPS:
                    answer["culprit"] = luck.choice(cells)
                return json.dumps(answer)

    return ScriptedAgent(players.Script(investigate), name="apprentice")
