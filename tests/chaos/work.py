"""What users do in a storm: submit rollouts, evaluate, train, and ask models. Each does it again until it is done."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import psutil
from tests.chaos.ledger import Ledger, parse_json
from tests.chaos.scene import MODEL, UPSTREAM, Scene

from hud.trace import dashed, new_id

IN_FLIGHT = 24
TASKS, GROUP = 4, 3
ATTEMPTS = 60
TRAINING = (
    *("--steps", "3", "--group", "4", "--tasks-per-step", "2", "--max-tokens", "12"),
    *("--max-concurrent", "1", "--seed", "3", "--runtime", "local"),
)
AGENT = {
    "type": "openai_compatible",
    "config": {"model": MODEL, "completion_kwargs": {"max_tokens": 4}},
}
SCRIPT = """
import os
from hud.agents import ScriptedAgent
from hud.trace import ToolCall

acknowledged = os.open({calls!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

async def play(run):
    for number in range(1, 4):
        await run.call_tool(ToolCall(id=str(number), name="add", arguments={{"one": 1, "other": 2}}))
        os.write(acknowledged, f"{{run.trace_id}} {{number}}\\n".encode())
    return "a word"

agent = ScriptedAgent(play)
"""
EVALUATED = """
from env import env, say
tasks = [say(tenths=n, seconds=0.5).model_copy(update={{"slug": f"say-{{n}}"}}) for n in range({tasks})]
"""


class Work(threading.Thread):
    """One user, in a thread: `once` again and again until `stop` is set, then to the end of what was begun."""

    def __init__(self, scene: Scene, ledger: Ledger, seed: int = 0) -> None:
        super().__init__(daemon=True)
        self.scene, self.ledger = scene, ledger
        self.stop = threading.Event()
        self.chance = random.Random(seed)

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self.once()
            except Exception as error:
                self.ledger.complain(f"{type(self).__name__} cannot go on: {error!r}")
                return

    def once(self) -> None:
        raise NotImplementedError

    def until_answered(self, call: Callable[[httpx.Client], httpx.Response]) -> Any:
        """Call until the server answers with a success, and return its JSON; any 4xx is an error."""
        while True:
            try:
                with self.scene.server.client() as api:
                    answer = call(api)
            except httpx.TransportError:
                time.sleep(0.3)
                continue
            if answer.is_success:
                return answer.json()
            if answer.status_code < 500 and answer.status_code != 429:
                raise AssertionError(f"{answer.status_code} {answer.text[:300]}")
            time.sleep(0.3)


class HostedRollouts(Work):
    """Groups of four rollouts for the fleet, `IN_FLIGHT` at most."""

    def once(self) -> None:
        job, group = new_id(), new_id()
        for attempt in range(4):
            trace, tenths = new_id(), self.chance.randint(0, 10)
            body = {
                "trace_id": dashed(trace),
                "job_id": dashed(job),
                "group_id": dashed(group),
                "env": "echo",
                "task": "say",
                "slug": f"say-{tenths}",
                "args": {"tenths": tenths, "seconds": self.chance.uniform(0.0, 2.0)},
                "agent": AGENT,
                "attempt": attempt,
            }
            self.until_answered(lambda api: api.post("/v2/rollouts/submit", json=body))  # noqa: B023
            self.ledger.rollouts[trace] = (group, tenths / 10)
        while not self.stop.is_set() and self._unfinished() > IN_FLIGHT - 4:
            time.sleep(0.3)

    def finish(self, seconds: float = 180.0) -> None:
        """Wait until the fleet has played everything."""
        until = time.monotonic() + seconds
        while left := self._unfinished():
            if time.monotonic() > until:
                self.ledger.complain(
                    f"{left} rollouts were not played {seconds:g} s after the storm."
                )
                return
            time.sleep(0.5)

    def _unfinished(self) -> int:
        recent = list(self.ledger.rollouts)[-64:]
        states = [
            self.until_answered(lambda api: api.get(f"/v2/trace/{trace}"))["status"]  # noqa: B023
            for trace in recent
        ]
        return sum(state not in ("completed", "error", "cancelled") for state in states)


class Commands(Work):
    """A command line that may be killed, and is then given again."""

    def play(self, running: list[psutil.Popen], *arguments: str) -> tuple[int, str]:
        """Run a command to its end; returns its exit code and output. A traceback is a broken promise."""
        process = self.scene.hud(*arguments)
        running.append(process)
        try:
            said, _ = process.communicate(timeout=300)
        finally:
            running.remove(process)
        if "Traceback (most recent call last)" in said:
            self.ledger.complain(f"hud {arguments[0]} prints a traceback:\n{said[-1500:]}")
        last = said.strip().splitlines()[-1:] or [""]
        self.ledger.commands.append(
            f"{time.strftime('%X')} {' '.join(arguments[:3])} ends with {process.returncode}: {last[0]}"
        )
        if process.returncode > 0:
            time.sleep(2.0)
        return process.returncode, said


class Evaluations(Commands):
    """Evaluations with a scripted agent, resumed until they are complete."""

    number = 0

    def once(self) -> None:
        self.number += 1
        name = f"storm-{self.number}"
        sources = self.scene.sources
        (sources / f"{name}.py").write_text(EVALUATED.format(tasks=TASKS))
        assert self.ledger.calls is not None
        (sources / "script.py").write_text(SCRIPT.format(calls=str(self.ledger.calls)))
        given = ("eval", f"{name}.py", "script.py:agent", "--all", "--group", str(GROUP), "--json")
        said = ""
        for _ in range(ATTEMPTS):
            job = self._job(name)
            resumed = () if job is None else ("--resume", job)
            code, said = self.play(self.scene.evaluations, *given, *resumed)
            if code != 0:
                continue
            ended = parse_json(said)
            # Exit code 0: something was measured. What failed, on a full disk for example, is played when it is resumed.
            if all(run["reward"] is not None for run in ended["runs"]):
                self.ledger.evaluations[ended["job_id"]] = (TASKS, GROUP)
                return
        raise AssertionError(
            f"{ATTEMPTS} attempts did not complete an evaluation; the last said {said}"
        )

    def _job(self, name: str) -> str | None:
        jobs = self.until_answered(lambda api: api.get("/v2/jobs", params={"limit": 100}))["items"]
        return next((job["id"] for job in jobs if job["name"].startswith(name)), None)


class Trainings(Commands):
    """Training runs of models that begin with the same weights, resumed until they are finished."""

    number = 0

    def once(self) -> None:
        self.number += 1
        self.train(f"trained-{self.number}")

    def train(self, name: str) -> None:
        """Make a model, train it to the end, and note it."""
        made = False
        while not made:
            try:
                self.scene.create_model(name)
                made = True
            except (httpx.HTTPError, AssertionError):
                time.sleep(0.5)
        said = ""
        for _ in range(ATTEMPTS):
            code, said = self.play(self.scene.trainers, "train", name, "train_tasks.py", *TRAINING)
            if code == 0 or self._finished(name):
                self.ledger.trained.append(name)
                return
        raise AssertionError(f"{ATTEMPTS} attempts did not finish a training; the last said {said}")

    def _finished(self, name: str) -> bool:
        """Return True where the command was killed after the end of its run: given again, it would begin another."""
        model = self.until_answered(
            lambda api: api.get("/v2/models/resolve", params={"model": name})
        )
        query = {"model": model["id"]}
        runs = self.until_answered(lambda api: api.get("/v2/training-runs", params=query))["items"]
        return any(run["status"] == "finished" for run in runs)


class Completions(Work):
    """Streams of a provider's model and of ours through the gateway: whole, or with an error that says why."""

    def once(self) -> None:
        model = self.chance.choice([MODEL, UPSTREAM])
        body = {
            "model": model,
            "stream": True,
            "max_tokens": 8,
            "messages": [{"role": "user", "content": "Say a word."}],
        }
        try:
            with (
                self.scene.server.client() as api,
                api.stream("POST", "/v1/chat/completions", json=body, timeout=10) as answer,
            ):
                text = answer.read().decode()
        except httpx.TransportError:
            ended = "no connection"
        else:
            if answer.status_code != 200:
                ended = f"status {answer.status_code}"
                if "message" not in text and "detail" not in text:
                    self.ledger.complain(f"The gateway answers {answer.status_code}: {text[:200]}")
            elif "[DONE]" in text:
                ended = "whole"
                if model == UPSTREAM and "eight" not in text:
                    self.ledger.complain(
                        f"A stream lost a part, and ends as if it were whole: {text}"
                    )
            else:
                ended = "an error in the stream" if '"error"' in text else "cut off"
        self.ledger.answers[ended] += 1
        time.sleep(0.2)
