"""A dialect and an agent type in a folder outside the repository join by their entry points alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.sources import ROOT
from tests.strangers import write_distribution

DIALECT = '''
"""Questions and answers: a dialect of one route, served and asked."""

import json

from hud.inference.dialects.codec import EVENTS, StreamedRequest
from hud.inference.dialects.dialect import DialectRoute, NamedProvider, ProviderDialect, RouteCall
from hud.inference.dialects.events import Begun, Finished, TextDelta
from hud.inference.dialects.request import GenerationRequest
from hud.inference.endpoints import Home, path_below
from hud.inference.prices import TokenCounts
from hud.trace import Completion, SamplingParams, Usage


class Codec:
    url = staticmethod(path_below)

    def credentials(self, key):
        return {"x-answer-key": key} if key else {}

    def read(self, body):
        return GenerationRequest(
            model=body.needed_text("model"),
            messages=[{"role": "user", "content": body.needed_text("question")}],
            sampling=SamplingParams(max_tokens=body.integer("most", least=1)),
            stream=bool(body.flag("stream")),
        )

    def unstreamed(self, body, request, model, turns):
        return {"answer": turns[0].text, "cost": written(turns[0].finished.usage)}

    def writer(self, body, request, model):
        return Writer()

    def error(self, refusal):
        return {"problem": refusal.message, "detail": refusal.message}

    def request(self, model, request):
        body = {"model": model, "question": request.messages[-1]["content"], "stream": request.stream}
        if request.sampling.max_tokens is not None:
            body["most"] = request.sampling.max_tokens
        return StreamedRequest(
            "answers",
            body,
            streams=request.stream,
            joined=lambda items: items[-1],
            completion=lambda answer: Completion(content=answer["answer"]),
            reader=Reader,
            lacks="has no answer",
        )


def written(usage):
    return {"in": usage.prompt_tokens, "out": usage.completion_tokens}


class Writer:
    content_type = EVENTS
    answer = None

    def write(self, event):
        if isinstance(event, TextDelta):
            return line({"piece": event.text})
        return line({"cost": written(event.usage)}) if isinstance(event, Finished) else b""

    def end(self):
        return b""

    def fail(self, refusal):
        return line({"error": {"message": refusal.message}})


def line(value):
    return b"data: " + json.dumps(value).encode() + b"\\n\\n"


class Reader:
    def __init__(self):
        self.usage = Usage()

    def read(self, value):
        if "piece" in value:
            return [TextDelta(0, value["piece"])]
        self.usage = Usage(prompt_tokens=value["cost"]["in"], completion_tokens=value["cost"]["out"])
        return []

    def end(self):
        return [Finished(0, "stop", self.usage)]


class Questions(ProviderDialect):
    family = "questions"
    codec = client = Codec()
    routes = (DialectRoute("answers", ("/questions/answers",), "An answer.", RouteCall("turn", "answers")),)
    prefixes = ("/questions/",)
    marks = frozenset({b"x-answer-version"})
    key_header = b"x-answer-key"
    limits = ("most",)
    usage_fields = ("cost",)
    provider = NamedProvider(
        "oracle", Home("Oracle", "https://oracle.example", "ORACLE_BASE_URL", ("ORACLE_API_KEY",)),
        prefixes=("oracle-",), listed=("oracle-1",), agent="openai_compatible",
    )

    def token_counts(self, usage):
        return TokenCounts(usage.get("in") or 0, usage.get("out") or 0)

plug = Questions()
'''

ASK = """
import httpx, json, os, tempfile
from pathlib import Path
from hud_platform.gateway.chat_formats import format_of
from hud_platform.store.tables import LOCAL_TEAM
from tests.platform.gateway.gateway_server import ScriptedEngine, make_platform, serving

with tempfile.TemporaryDirectory() as home:
    app = make_platform(Path(home), keys=True)
    parts = app.state.parts
    parts.__dict__["engine"] = ScriptedEngine(
        format_of(parts.registry.of(LOCAL_TEAM).model("tiny").folder).chat.tokenizer, "Seven apples."
    )
    key = parts.keys.mint("k", LOCAL_TEAM, scopes=("run",))[1]
    admin = parts.keys.mint("a", LOCAL_TEAM, scopes=("admin",))[1]
    os.environ["FAR_API_KEY"] = key
    with serving(app) as url:
        ask = {"model": "tiny", "question": "How many?"}
        own = httpx.Client(base_url=url, headers={"x-answer-key": key})
        shown = {"plain": own.post("/questions/answers", json=ask).json()}
        shown["streamed"] = own.post("/questions/answers", json={**ask, "stream": True}).text
        shown["missing"] = own.post("/questions/answers", json={"model": "tiny"}).json()
        shown["absent"] = own.get("/questions/nothing").json()
        refused = httpx.post(f"{url}/questions/answers", json=ask)
        shown["refused"] = [refused.status_code, list(refused.json())]
        chat = httpx.Client(base_url=url, headers={"authorization": f"Bearer {admin}"})
        provider = {"url": f"{url}/questions", "dialect": "questions", "upstream_model": "tiny", "key_env": "FAR_API_KEY"}
        made = chat.post("/v2/models/provide", json={"name": "far", "provider": provider})
        shown["made"] = made.json()["sdk_agent_type"]
        told = {"model": "far", "messages": [{"role": "user", "content": "How many?"}]}
        answer = chat.post("/chat/completions", json=told).json()
        shown["translated"] = [answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]]
        shown["passed"] = own.post("/questions/answers", json={**ask, "model": "far"}).json()
        shown["listed"] = [row["id"] for row in chat.get("/models", headers={"x-answer-version": "1"}).json()["data"]]
    parts.close()
print(json.dumps(shown))
"""

AGENT = """
from hud.agents.providers.agent_kind import AgentKind
from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import AgentConfig
from hud.trace.chat_model import ChatModel, Completion


class PoliteConfig(AgentConfig):
    name: str = "you"


class Polite(ChatModel):
    name = "polite-1"

    def __init__(self, who):
        self.who = who

    async def complete(self, messages, tools, params, *, continuation=None, trace_id=None):
        return Completion(content=f"Hello {self.who}")


class PoliteAgent(ToolLoopAgent):
    def __init__(self, config=None, **fields):
        config = config or PoliteConfig(**fields)
        super().__init__(Polite(config.name), config)


plug = AgentKind("polite", "PoliteAgent", PoliteConfig, r"polite-")
"""

GREET = """
from hud import Environment

env = Environment("greetings")


@env.template()
async def greet(name: str):
    answer = yield f"Greet {name}."
    yield 1.0 if name in answer else 0.0


tasks = [greet(name="Ada")]
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs Python with a distribution in a folder: its output."""
    outside = tmp_path / "outside"
    outside.mkdir()

    def run(code, points, *command):
        write_distribution(outside, code, points)
        done = subprocess.run(
            [sys.executable, *command],
            env={
                **os.environ,
                "PYTHONPATH": f"{outside}:{ROOT}",
                "HUD_HOME": str(tmp_path / "home"),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr

    return run


@pytest.mark.slow
def test_a_stranger_s_dialect_is_served_and_asked_by_the_gateway(run):
    points = {"hud.dialects": {"questions": "strange_plug:plug"}}
    shown = json.loads(run(DIALECT, points, "-c", ASK).splitlines()[-1])
    assert shown["plain"]["answer"] == "Seven apples."
    assert '"piece"' in shown["streamed"]
    assert shown["missing"]["problem"] == "question is missing."
    assert "There is no GET /questions/nothing" in shown["absent"]["problem"]
    assert shown["refused"] == [401, ["problem", "detail"]]
    assert shown["made"] == "openai_compatible"
    assert shown["translated"] == ["Seven apples.", shown["plain"]["cost"]["out"]]
    assert shown["passed"] == shown["plain"]
    assert shown["listed"] == ["tiny", "far"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (DIALECT.replace("    family =", "    other ="), "'questions' has no attribute 'family'"),
        (
            DIALECT.replace('prefixes = ("/questions/",)', 'prefixes = ("/answers/",)'),
            "has the route /questions/answers, which is below none of its prefixes",
        ),
        (DIALECT.replace('"questions"', '"gemini"'), "are both of the family 'gemini'"),
        (
            DIALECT.replace("/questions/answers", "/v2/ingest").replace("/questions/", "/v2/"),
            "POST /v2/ingest is served twice",
        ),
        (
            DIALECT.replace("/questions/answers", "/messages").replace("/questions/", "/messages"),
            "POST /messages is served twice",
        ),
        ("plug = 3", "must be hud.inference.dialects.dialect.Dialect"),
    ],
)
@pytest.mark.slow
def test_one_that_cannot_join_is_refused_with_a_sentence(run, tmp_path, code, said):
    program = (
        "from hud.errors import UsageError\n"
        "from hud_platform.application import create_app\n"
        "from hud_platform.process.config import PlatformConfig\n"
        f"try: create_app(PlatformConfig(__import__('pathlib').Path({str(tmp_path / 'home')!r})))\n"
        "except UsageError as error: print(error)\n"
    )
    points = {"hud.dialects": {"questions": "strange_plug:plug"}}
    assert said in run(code, points, "-c", program)


@pytest.mark.slow
def test_a_stranger_s_agent_plays_by_the_name_of_its_type(run, tmp_path):
    (tmp_path / "env.py").write_text(GREET)
    points = {
        "hud.agent_kinds": {"polite": "strange_plug:plug"},
        "hud.agents": {"PoliteAgent": "strange_plug:PoliteAgent"},
    }
    played = run(
        AGENT,
        points,
        "-m",
        "hud.cli.main",
        *("eval", "env.py", "polite", "-c", "name=Ada", "--quiet"),
    )
    assert "mean reward  1.000" in played, played
