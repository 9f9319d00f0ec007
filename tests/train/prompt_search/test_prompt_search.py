"""The search of a system prompt: a hidden convention, its null run, budgets, and searches that are killed."""

import pytest
import sqlalchemy as sa
from benchmarks.conventions.marked_words import (
    HIDDEN,
    WORDS,
    before,
    instruction,
    make_policy,
    question,
    splits,
)
from benchmarks.conventions.reflector import Server

from hud import Environment
from hud.agents import ScriptedAgent
from hud.agents.agent_forms import as_agent
from hud.agents.agent_kinds import SERVED
from hud.client import connect, disconnect
from hud.errors import ConflictError, UsageError
from hud.eval import StopSignal, Taskset
from hud.inference.models import chat_model
from hud.trace import SamplingParams
from hud.trace.sampled.token_columns import unpack_ids
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.monitoring.progress import Reporter
from hud.train.prompt_search.config import PromptSearchConfig
from hud.train.prompt_search.search import search_prompt
from hud_platform.store import tables

PICKED = WORDS[:30]
env = Environment("lengths")


@env.template()
async def length(word: str):
    answer = yield f"A long word, please, with {word}."
    yield min(1.0, len(answer) / 40)


class Notes(Reporter):
    """Keeps notes, and stops after an iteration."""

    def __init__(self, stop_after=None):
        self.notes, self.rollouts, self.stop_after, self.stop = [], [], stop_after, StopSignal()

    def note(self, text):
        self.notes.append(text)

    def stepped(self, step, metrics):
        self.rollouts.append(metrics["rollouts"])
        if step + 1 == self.stop_after:
            self.stop.request()


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A home with a policy that follows instructions; tests fork it."""
    home = tmp_path_factory.mktemp("taught")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUD_HOME", str(home))
        patch.delenv("HUD_API_URL", raising=False)
        yield home
        disconnect(home)


@pytest.fixture
async def model(taught, request):
    """A fork of the policy."""
    if not (taught / "writer.jsonl").exists():
        await make_policy("writer", taught, epochs=12, words=PICKED, signs=(HIDDEN, "#", "*"))
    name = f"m{abs(hash(request.node.name)) % 10**8}"
    await connect().post("/v2/models/fork", {"source_model_id": "writer", "name": name})
    return name


def config(model, **values):
    values = {"budget": "400rollouts", "max_tokens": 12, "max_turns": 1, "eval_group": 3} | values
    return PromptSearchConfig(model=model, **values)


def stand_in(server):
    return as_agent(SERVED, {"model": "stand-in", "base_url": server.url, "api_key": "none"})


def trained_and_held_out():
    return splits(14, 12, words=PICKED)[:2]


async def checkpoints(model):
    return await connect().get(f"/v2/models/{model}/checkpoints")


@pytest.mark.slow
async def test_a_convention_that_only_grades_reveal_is_found_and_served(model):
    tasks, held_out = trained_and_held_out()
    with Server() as server:
        report = await search_prompt(
            config(model), tasks=tasks, held_out=held_out, reflector=stand_in(server)
        )
    assert report.promoted
    assert report.judgement.low > 0
    assert report.spent["rollouts"] <= 400
    assert report.prompt == instruction(HIDDEN)
    head = next(node for node in await checkpoints(model) if node["is_active"])
    assert (head["id"], head["system_prompt"]) == (report.checkpoint_id, report.prompt)

    # Whoever calls the model gets it.
    caller = await chat_model(model)
    said = [{"role": "user", "content": question(PICKED[1], before(PICKED[1]))}]
    answers = [
        (await caller.complete(said, [], SamplingParams(max_tokens=12, seed=seed))).content
        for seed in range(10)
    ]
    assert sum(answer == f"{HIDDEN}{PICKED[1]}{HIDDEN}" for answer in answers) >= 6

    # The jobs fold under the run, and the search is finished.
    (run,) = (await connect().get("/v2/training-runs", params={"model": model}))["items"][:1]
    assert (run["id"], run["status"]) == (report.run_id, "finished")
    jobs = [await connect().get(f"/v2/jobs/{job}") for job in run["state"]["jobs"]]
    assert [job["purpose"] for job in jobs] == ["training"]
    again = Notes()
    repeated = await search_prompt(config(model), tasks=tasks, held_out=held_out, reporter=again)
    assert repeated == report
    assert "finished already" in again.notes[0]


@pytest.mark.slow
async def test_training_starts_from_a_prompt_and_keeps_it(model):
    """Rollouts are sampled with the prompt, id for id, and a step's checkpoint has it, too."""
    prompt = instruction(HIDDEN)
    node = await connect().post(f"/v2/models/{model}/prompts", {"text": prompt})
    await connect().put(f"/v2/models/{model}/head", {"checkpoint_id": node["id"]})
    tasks = Taskset("lengths", [length(word=word) for word in PICKED[:8]])
    settings = {"steps": 1, "lr": 1e-3, "group": 8, "max_tokens": 12, "max_turns": 1}
    trained = await train(TrainConfig(model=model, **settings), tasks=tasks)
    nodes = {one["id"]: one for one in await checkpoints(model)}
    assert nodes[trained.head]["system_prompt"] == prompt
    assert nodes[trained.head]["prev_model_checkpoint_id"] == node["id"]
    platform = connect().embedded.parts
    policy = platform.policies.serving(platform.registry.model(model)).policy
    (job,) = (await connect().get(f"/v2/training-runs/{trained.run_id}"))["state"]["jobs"]
    rendered = {
        tuple(
            policy.chat.render(
                [
                    {"role": "system", "content": prompt},
                    {"role": "user", "content": f"A long word, please, with {word}."},
                ],
                [],
            )
        )
        for word in PICKED[:8]
    }
    prompts = sa.select(tables.samples.c.prompt).join(
        tables.runs, tables.runs.c.trace_id == tables.samples.c.trace_id
    )
    sampled = platform.store.values(prompts.where(tables.runs.c.job_id == job))
    assert {tuple(unpack_ids(column)) for column in sampled} <= rendered
    assert len(sampled) >= 8


@pytest.mark.slow
async def test_the_null_run_moves_nothing(model):
    tasks, held_out = trained_and_held_out()
    with Server() as server:
        report = await search_prompt(
            config(model, shuffle_rewards=True, seed=3),
            tasks=tasks,
            held_out=held_out,
            reflector=stand_in(server),
        )
    assert not report.promoted
    assert not any(node["is_active"] and node["system_prompt"] for node in await checkpoints(model))


@pytest.mark.slow
async def test_a_stopped_search_goes_on_and_stays_within_its_budget(model):
    tasks, held_out = trained_and_held_out()
    with Server() as server:
        halfway = Notes(stop_after=1)
        first = await search_prompt(
            config(model),
            tasks=tasks,
            held_out=held_out,
            reflector=stand_in(server),
            reporter=halfway,
            stop=halfway.stop,
        )
        assert (first.finished, first.iterations, first.judgement) == (False, 1, None)
        again = Notes()
        second = await search_prompt(
            config(model),
            tasks=tasks,
            held_out=held_out,
            reflector=stand_in(server),
            reporter=again,
        )
    assert second.run_id == first.run_id
    assert again.notes[0].startswith(f"Going on with the search {first.run_id[:12]} after 1 iter")
    assert again.rollouts[0] > halfway.rollouts[0], "what was spent before counts"
    assert second.spent["rollouts"] <= 400
    assert second.promoted


@pytest.mark.slow
async def test_rollouts_of_a_killed_search_are_spent(model):
    """A process that dies in the middle of a batch has played it: the next one does not play it for nothing."""
    tasks, held_out = trained_and_held_out()

    class Dies(Exception):
        pass

    def reflector(messages, tools, trace):
        raise Dies

    with pytest.raises(Dies):
        await search_prompt(
            config(model), tasks=tasks, held_out=held_out, reflector=ScriptedAgent(reflector)
        )
    (run,) = (await connect().get("/v2/training-runs", params={"model": model}))["items"][:1]
    spent = run["state"]["spent"]["rollouts"]
    assert spent == 14 + 4, "validation of its own prompt, and a minibatch"
    said = Notes()
    again = await search_prompt(
        config(model, budget=f"{spent + 3}rollouts"),
        tasks=tasks,
        held_out=held_out,
        reporter=said,
        reflector=ScriptedAgent(lambda messages, tools, trace: "```\nnothing\n```"),
    )
    assert again.spent["rollouts"] == spent, "no iteration fits what is left"


@pytest.mark.slow
async def test_a_new_head_begins_a_new_search(model):
    tasks, held_out = trained_and_held_out()
    silent = ScriptedAgent(lambda messages, tools, trace: "I have no idea.")
    halfway = Notes(stop_after=1)
    arguments = {"tasks": tasks, "held_out": held_out, "reflector": silent}
    first = await search_prompt(config(model), **arguments, reporter=halfway, stop=halfway.stop)
    node = await connect().post(f"/v2/models/{model}/prompts", {"text": "Write nothing."})
    await connect().put(f"/v2/models/{model}/head", {"checkpoint_id": node["id"]})
    again = Notes()
    second = await search_prompt(config(model, patience=1), **arguments, reporter=again)
    assert second.run_id != first.run_id
    assert "the head has moved since" in again.notes[0]
    assert (second.own, second.prompt, second.judgement) == (
        "Write nothing.",
        "Write nothing.",
        None,
    )
    assert second.note.startswith("No proposal earned more")


@pytest.mark.slow
async def test_what_a_search_played_is_no_evidence_later(model):
    tasks, held_out = trained_and_held_out()
    silent = ScriptedAgent(lambda messages, tools, trace: "I have no idea.")
    await search_prompt(config(model, patience=1), tasks=tasks, held_out=held_out, reflector=silent)
    from hud.train.promotion.checkpoint_comparison import play

    node = await connect().post(f"/v2/models/{model}/prompts", {"text": "Write nothing."})
    playing = config(model).playing
    jobs = [await play(playing, which, tasks) for which in ("head", node["id"])]
    body = {"checkpoint_id": node["id"], "jobs": [job.id for job in jobs]}
    with pytest.raises(ConflictError, match="are trained on"):
        await connect().post(f"/v2/models/{model}/promote", body)


@pytest.mark.slow
async def test_settings_without_meaning_are_refused_before_anything_is_played(model):
    tasks, held_out = trained_and_held_out()
    with pytest.raises(
        UsageError, match=r"holds no iteration: 14 validate .* at least 108rollouts"
    ):
        await search_prompt(config(model, budget="20rollouts"), tasks=tasks, held_out=held_out)
    with pytest.raises(UsageError, match="12 of 12 held-out tasks are training tasks"):
        await search_prompt(config(model), tasks=held_out, held_out=held_out)
    with pytest.raises(UsageError, match="--hour-price"):
        await search_prompt(config(model, budget="5usd"), tasks=tasks, held_out=held_out)
    with pytest.raises(UsageError, match="no budget"):
        await search_prompt(config(model, budget="much"), tasks=tasks, held_out=held_out)
    body = {"name": "served", "provider": {"url": "http://127.0.0.1:9/v1"}}
    await connect().post("/v2/models/provide", body)
    with pytest.raises(UsageError, match="lives with its provider"):
        await search_prompt(config("served"), tasks=tasks, held_out=held_out)


@pytest.mark.slow
async def test_a_fork_of_another_kind_keeps_the_prompt(model):
    node = await connect().post(f"/v2/models/{model}/prompts", {"text": "Be brief."})
    await connect().put(f"/v2/models/{model}/head", {"checkpoint_id": node["id"]})
    names = {"same": None, "adapter": {"training": "lora", "lora_rank": 2}}
    for name, settings in names.items():
        body = {"source_model_id": model, "name": f"{model}-{name}", "config": settings}
        await connect().post("/v2/models/fork", body)
        fork = connect().embedded.parts.registry.model(f"{model}-{name}")
        tree = connect().embedded.parts.registry.tree
        assert tree.system_prompt(fork.head_checkpoint_id) == "Be brief."
        caller = await chat_model(fork.slug)
        said = [{"role": "user", "content": "The word is red."}]
        done = await caller.complete(said, [], SamplingParams(max_tokens=4))
        policy = connect().embedded.parts.policies.serving(fork).policy
        system = {"role": "system", "content": "Be brief."}
        assert done.sample.prompt_token_ids == policy.chat.render([system, *said], [])
