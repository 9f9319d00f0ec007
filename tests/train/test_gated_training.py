"""A gated training run: it goes on in its candidate after a stop, and judges against the head that it promoted."""

import pytest

from hud import Environment
from hud.client import connect, disconnect
from hud.errors import ConflictError, UsageError
from hud.eval import StopSignal, Taskset
from hud.train.client import TrainingClient
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.monitoring.progress import Reporter
from hud.train.promotion.checkpoint_comparison import play
from hud.train.supervised.supervised_run import warm_up

env = Environment("letters")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)


WORDS = (
    *("red", "green", "blue", "yellow", "pink", "black", "white", "grey"),
    *("brown", "gold", "teal", "navy", "lime", "plum", "rose", "ruby"),
)


HELD_OUT = (
    *("cyan", "mint", "rust", "sand", "wine", "jade", "coal", "snow"),
    *("ash", "bone", "clay", "corn", "fawn", "iris", "onyx", "peach"),
)


class StopAfter(Reporter):
    """Stops a run after the held-out score of a step."""

    def __init__(self, step):
        self.stop, self.step, self.notes = StopSignal(), step, []

    def scored(self, score):
        if score.step == self.step:
            self.stop.request()

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def held_out():
    return Taskset("held-out letters", [say(word=word) for word in HELD_OUT])


@pytest.fixture
async def tasks(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    sizes = {"hidden": 32, "layers": 1, "vocab_size": 300, "max_context": 96}
    texts = [f"say {word}" for word in (*WORDS, *HELD_OUT)] * 5
    await connect().post("/v2/models/create", {"name": "m", "texts": texts, "sizes": sizes})
    yield Taskset("letters", [say(word=word) for word in WORDS])
    disconnect(tmp_path)


def config(**values):
    return TrainConfig(
        model="m",
        steps=6,
        lr=0.01,
        max_tokens=8,
        max_turns=1,
        eval_every=3,
        promote="gate",
        **values,
    )


@pytest.mark.slow
async def test_a_stopped_gated_run_goes_on_in_its_candidate(tasks, held_out):
    halfway = StopAfter(3)
    first = await train(
        config(), tasks=tasks, held_out=held_out, reporter=halfway, stop=halfway.stop
    )
    assert (first.model, first.next_step, first.finished) == ("m-candidate-1", 3, False)
    again = StopAfter(None)
    # Conditions of the gate are no part of the experiment: they may change in the middle.
    second = await train(config(min_gain=0.001), tasks=tasks, held_out=held_out, reporter=again)
    assert (second.model, second.first_step, second.finished) == ("m-candidate-1", 3, True)
    assert again.notes[0] == "m-candidate-1 is trained; the head of m moves only through the gate."

    decisions = [*first.decisions, *second.decisions]
    assert [one["step"] for one in decisions] == [3, 6]
    jobs = [score.job_id for score in second.scores]
    assert decisions[0]["jobs"] == jobs[:2]
    assert decisions[0]["moved"], f"a longer answer is learned in three steps: {decisions[0]}"
    assert decisions[1]["jobs"] == jobs[1:], "the head is what the run promoted"


@pytest.mark.slow
async def test_no_old_score_judges_a_head_that_another_run_moved(tasks, held_out):
    halfway = StopAfter(3)
    await train(config(), tasks=tasks, held_out=held_out, reporter=halfway, stop=halfway.stop)
    other = TrainConfig(model="m", steps=1, lr=0.01, max_tokens=8, max_turns=1)
    head = (await train(other, tasks=tasks)).head
    again = StopAfter(None)
    report = await train(config(), tasks=tasks, held_out=held_out, reporter=again)
    assert report.decisions == []
    (note,) = [note for note in again.notes if "Step 6" in note]
    assert note.startswith("Step 6 was not judged: Job ")
    assert note.endswith("not by the head of 'm'; play the tasks again with both.")
    assert (await connect().get("/v2/models/m"))["head_checkpoint_id"] == head


async def test_a_gated_run_that_holds_out_what_it_trains_on_is_refused_at_its_start(tasks):
    with pytest.raises(UsageError, match="16 of 16 held-out tasks are trained on, too"):
        await train(config(), tasks=tasks, held_out=tasks)


@pytest.mark.slow
async def test_evidence_on_trained_tasks_is_refused(tasks):
    plain = TrainConfig(model="m", steps=1, lr=0.01, max_tokens=8, max_turns=1)
    made = (await train(plain, tasks=tasks)).head
    await TrainingClient("m").set_head("base")
    jobs = [(await play(plain, one, tasks)).id for one in ("base", made)]
    with pytest.raises(ConflictError, match=r"of the 16 tasks are trained on, such as say\(word="):
        await connect().post("/v2/models/m/promote", {"checkpoint_id": made, "jobs": jobs})


@pytest.mark.slow
async def test_jobs_whose_rewards_follow_different_rules_are_no_evidence(tasks, held_out):
    plain = TrainConfig(model="m", steps=1, lr=0.01, max_tokens=8, max_turns=1)
    made = (await train(plain, tasks=tasks)).head
    await TrainingClient("m").set_head("base")
    jobs = [(await play(plain, one, held_out)).id for one in ("base", made)]
    rule = {"kind": "newest", "name": "luck"}
    await connect().post("/v2/reward-rules", {"rule": rule, "job": jobs[1]})
    asked = {"checkpoint_id": made, "jobs": jobs}
    with pytest.raises(ConflictError, match="different rules of rewards"):
        await connect().post("/v2/models/m/promote", asked)
    await connect().post("/v2/reward-rules", {"rule": rule})
    assert "promoted" in await connect().post("/v2/models/m/promote", asked)


@pytest.mark.slow
async def test_tasks_of_the_recorded_job_of_a_supervised_run_are_trained_on(tasks):
    shown = (await play(TrainConfig(model="m", max_tokens=8, max_turns=1), "base", tasks)).id
    made = (await warm_up("m", job=shown, tasks=tasks)).head
    await TrainingClient("m").set_head("base")
    plain = TrainConfig(model="m", max_tokens=8, max_turns=1)
    jobs = [(await play(plain, one, tasks)).id for one in ("base", made)]
    with pytest.raises(ConflictError, match=r"of the 16 tasks are trained on, such as say\(word="):
        await connect().post("/v2/models/m/promote", {"checkpoint_id": made, "jobs": jobs})


async def test_a_held_out_task_that_only_names_its_defaults_is_trained_on(tasks):
    env = Environment("plain")

    @env.template()
    async def say(word: str, loud: bool = False):
        yield word
        yield 1.0

    trained, named = Taskset("t", [say("red")]), Taskset("h", [say("red", loud=False)])
    with pytest.raises(UsageError, match="1 of 1 held-out tasks are trained on, too"):
        await train(config(), tasks=trained, held_out=named)
