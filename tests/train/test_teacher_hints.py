"""A teacher that reads a hint before it scores: the model itself, or another one."""

import pytest
import torch
from tests.train.policy_home import policy_home
from tests.train.test_client_training import SIZES, TEXTS, agent
from tests.train.test_distillation import WHOLE, joined

from hud import Environment, TrainingClient
from hud.client import connect
from hud.engine.chat.chat_format import ChatFormat
from hud.engine.chat.inserted_message import InsertedMessage
from hud.engine.pretrained import load_decoder
from hud.errors import NotFoundError, UsageError
from hud.eval import Taskset
from hud.graders import EvaluationResult
from hud.learning.datums import sampled_turns
from hud.train.config import TrainConfig, make_config
from hud.train.loop import train

env = Environment("hinted")


@env.template()
async def say(word: str, hint: str | None = "green"):
    yield f"say {word}"
    yield EvaluationResult(reward=0.5, info={} if hint is None else {"solution": hint})


@pytest.fixture
async def home(tmp_path, monkeypatch):
    async with policy_home(tmp_path, monkeypatch, TEXTS, SIZES) as folder:
        yield folder


TASKS = Taskset("words", [say(word="red"), say(word="blue", hint="a e <|user|>"), say(word="blue")])


@pytest.fixture
async def model(home):
    """Return the chat format and the decoder of `m`, in fp64."""
    record = connect().embedded.parts.registry.model("m")
    decoder = load_decoder(record.folder)
    return ChatFormat(record.folder, decoder.config), decoder.double()


def rows_of(decoder, prompt, output):
    tokens = torch.tensor([*prompt, *output])
    hidden = decoder.hidden_packed(
        tokens, torch.arange(len(tokens)), torch.tensor([0, len(tokens)])
    )
    return decoder.logits(hidden).log_softmax(-1)[len(prompt) - 1 : -1].detach()


@pytest.mark.parametrize("hint", ["green", "a <|user|> b", " two\nlines "])
async def test_the_hint_is_a_user_message_before_the_first_turn(model, hint):
    chat, _ = model
    prompt = list(chat.render([{"role": "user", "content": "say red"}], []))
    inserted = InsertedMessage.of(chat, hint)
    place = inserted.place([*prompt, 7, 8], len(prompt))
    messages = [{"role": "user", "content": text} for text in ("say red", hint)]
    expected = list(chat.render(messages, []))
    assert prompt[:place] + inserted.message + prompt[place:] == expected
    with pytest.raises(UsageError, match="begins otherwise"):
        inserted.place([7, *prompt[:-1], 7], len(prompt) + 1)


async def test_the_loss_is_the_kl_to_the_model_that_reads_the_hint(model):
    """Runs of two tasks have equal prompts, and other hints."""
    chat, decoder = model
    job = await TASKS.run(agent(), group=3)
    gap = 0.0
    for run in job.runs:
        (sample,) = sampled_turns(run.trace)
        messages = [str(run.prompt), run.grade.info["solution"]]
        hinted = list(chat.render([{"role": "user", "content": text} for text in messages], []))
        own = rows_of(decoder, sample.prompt_token_ids, sample.output_token_ids)
        other = rows_of(decoder, hinted, sample.output_token_ids)
        likeliest = other.topk(20).indices
        mine, theirs = joined(own, likeliest), joined(other, likeliest)
        gap += (mine.exp() * (mine - theirs)).sum().item()
    trainer = TrainingClient("m")
    result = await trainer.forward_backward(
        job.runs, teacher="m", teacher_checkpoint="base", teacher_hint="solution", **WHOLE
    )
    assert gap > 1e-3
    assert result.metrics["loss:sum"] == pytest.approx(gap, rel=2e-3)


async def test_a_run_without_a_hint_has_the_teacher_without_one(model):
    tasks = Taskset("mixed", [say(word="red"), say(word="blue", hint=None)])
    job = await tasks.run(agent(), group=2)
    trainer = TrainingClient("m")
    every = await trainer.forward_backward(
        job.runs, teacher="m", teacher_checkpoint="base", teacher_hint="solution", **WHOLE
    )
    hinted = [run for run in job.runs if run.grade.info]
    alone = await trainer.forward_backward(
        hinted, teacher="m", teacher_checkpoint="base", teacher_hint="solution", **WHOLE
    )
    # The teacher without a hint is the student.
    assert every.metrics["loss:sum"] == pytest.approx(alone.metrics["loss:sum"], rel=1e-3)
    assert alone.metrics["loss:sum"] > 0


async def test_inputs_without_hints_are_refused_by_name(home):
    job = await Taskset("bare", [say(word="red", hint=None)]).run(agent(), group=2)
    trainer = TrainingClient("m")
    options = {"teacher": "m", "teacher_checkpoint": "base", "teacher_hint": "solution", **WHOLE}
    with pytest.raises(
        UsageError, match=r"No grade of these runs has a text as info\['solution'\]"
    ):
        await trainer.forward_backward(job.runs, **options)
    with pytest.raises(UsageError, match="give runs, not trace ids"):
        await trainer.forward_backward([run.trace_id for run in job.runs], **options)
    with pytest.raises(UsageError, match="teacher_hint needs a teacher"):
        await trainer.forward_backward(job.runs[:1], teacher_hint="solution")
    with pytest.raises(UsageError, match="a teacher_hint needs a teacher"):
        make_config({"model": "m", "teacher_hint": "solution"})


async def test_a_training_step_moves_the_model_to_what_it_says_with_the_hint(home):
    """Tokens that the hint makes likelier become likelier without it."""
    await connect().post("/v2/models/fork", {"source_model_id": "m", "name": "before"})
    config = TrainConfig(
        model="m", teacher="m", teacher_hint="solution", steps=4, group=2, max_tokens=8, lr=1e-3
    )
    report = await train(config, tasks=TASKS)
    assert len(report.history) == 4
    job = await TASKS.run(agent(), group=2)
    distances = []
    for name in ("before", "m"):
        result = await TrainingClient(name).forward_backward(
            job.runs, teacher="before", teacher_checkpoint="base", teacher_hint="solution", **WHOLE
        )
        distances.append(result.metrics["reference_kl:mean"])
    assert distances[1] < distances[0]


async def test_a_model_that_teaches_itself_does_so_as_it_was_at_the_run_s_start(home):
    """The trained model's steps are those of one that an equal, still model teaches, also after it was trained before."""
    await TrainingClient("m").step((await TASKS.run(agent(), group=2)).runs, loss_fn="cross_entropy", learning_rate=1e-2)  # fmt: skip
    for name in ("own", "still", "by-still"):
        await connect().post("/v2/models/fork", {"source_model_id": "m", "name": name})
    options = {"teacher_hint": "solution", "steps": 3, "group": 2, "max_tokens": 8, "lr": 1e-2}
    for model, teacher in (("own", "own"), ("by-still", "still")):
        config = TrainConfig(model=model, teacher=teacher, max_concurrent=1, **options)
        await train(config, tasks=TASKS)
    runs = (await TASKS.run(agent(), group=2)).runs
    first, second = [
        (await TrainingClient(name).forward(runs)).data for name in ("own", "by-still")
    ]
    for one, other in zip(first, second, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    with pytest.raises(UsageError, match="cannot be its own teacher at its head"):
        await TrainingClient("own").forward_backward(runs, teacher="own", teacher_hint="solution", **WHOLE)  # fmt: skip
    with pytest.raises(NotFoundError, match="no checkpoint"):
        await TrainingClient("own").forward_backward(runs, teacher="own", teacher_checkpoint="nothing", **WHOLE)  # fmt: skip
