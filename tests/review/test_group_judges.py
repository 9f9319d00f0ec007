"""Judges of groups: requests in both orders, replies, the preference for places, and rewards in commands and in training."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.train.test_client_training import SIZES, TEXTS

from hud import Environment
from hud.agents import ScriptedAgent
from hud.cli.main import run as command
from hud.client import connect, disconnect
from hud.errors import UsageError
from hud.eval import StopSignal, Taskset
from hud.review.claims import UnreadableReply
from hud.review.comparison_requests import values_of
from hud.review.group_judges import ModelJudge, win_shares
from hud.review.judge_forms import open_judge, weighted
from hud.review.reviewer import Reviewer
from hud.trace import Completion, SamplingParams
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.monitoring.progress import Reporter

env = Environment("desk")
ANSWERS = ("c" * 3, "d" * 4, "a", "b" * 2)


@env.template()
async def greet(name: str):
    yield f"Greet {name}."
    yield 0.5


tasks = Taskset("desk", [greet(name=name) for name in ("Ana", "Ben")])
clerk = ScriptedAgent(lambda run: ANSWERS[run.attempt])


class Comparing:
    """A model that prefers long answers, or whichever run is shown first."""

    name = "comparing"

    def __init__(self, method, by_place=False):
        self.method, self.by_place, self.requests = method, by_place, []

    async def complete(self, messages, tools, params, **_):
        document = json.loads(messages[1]["content"])
        self.requests.append((messages[0]["content"], document))
        texts = [run["answer"] for run in document["runs"]]
        sizes = [-place if self.by_place else len(text) for place, text in enumerate(texts)]
        ordered = sorted(range(len(sizes)), key=lambda place: -sizes[place])
        if self.method == "ranking":
            reply = {"ranking": [place + 1 for place in ordered]}
        elif self.method == "pairwise":
            reply = {"better": ordered[0] + 1}
        else:
            scores = [
                max(0.0, 1 - place) if self.by_place else len(text) / 10
                for place, text in enumerate(texts)
            ]
            rows = enumerate(scores, 1)
            reply = {
                "runs": [{"run": n, "scores": [score, 0.0], "reason": "r"} for n, score in rows]
            }
        return Completion(content=json.dumps(reply), finish_reason="stop")


def judge_of(method, **options):
    model = Comparing(method, **options)
    criteria = [("It is long.", 3.0), ("It is polite.", 1.0)]
    reviewer = Reviewer(model, SamplingParams())
    return model, ModelJudge("comparing", reviewer, method, criteria, seed=1)


@pytest.mark.parametrize(
    ("method", "rewards", "calls"),
    [
        ("scores", [0.225, 0.3, 0.075, 0.15], 2),
        ("ranking", [2 / 3, 1.0, 0.0, 1 / 3], 2),
        ("pairwise", [2 / 3, 1.0, 0.0, 1 / 3], 12),
    ],
)
async def test_a_model_grades_a_group_in_both_orders(method, rewards, calls):
    model, judge = judge_of(method)
    job = await tasks.run(clerk, group=4, judge=judge)
    assert [run.reward for run in job.runs] == pytest.approx(rewards * 2)
    assert judge.calls(4) == calls
    assert len(model.requests) == 2 * calls
    instructions, document = model.requests[0]
    assert "1. It is long. (weight 3)\n2. It is polite." in instructions
    assert document["task"].startswith("Greet ")
    assert "0.5" not in json.dumps(document)  # The environment's grade is not shown.
    assert judge.bias.agreeing == judge.bias.repeated == calls
    assert "without a preference" in judge.lines()[1]


@pytest.mark.parametrize("method", ["scores", "ranking", "pairwise"])
async def test_a_preference_for_the_first_place_is_shown_and_earns_nothing(method):
    _, judge = judge_of(method, by_place=True)
    job = await tasks.run(clerk, group=2, judge=judge)
    assert len({run.reward for run in job.runs}) == 1
    shown, both = judge.lines()[1:]
    assert shown.startswith("best by place  1.00 0.00")
    assert both.startswith("both orders    0 of 2")


@pytest.mark.parametrize(
    ("method", "reply"),
    [
        ("scores", {"runs": [{"run": 1, "scores": [1, 1]}]}),
        ("scores", {"runs": [{"run": 1, "scores": [1, 1]}, {"run": 1, "scores": [1, 1]}]}),
        ("scores", {"runs": [{"run": 1, "scores": [1]}, {"run": 2, "scores": [1]}]}),
        ("scores", {"runs": [{"run": 1, "scores": [2, 0]}, {"run": 2, "scores": [1, 1]}]}),
        ("scores", {"runs": 3}),
        ("ranking", {"ranking": [1, 1]}),
        ("ranking", {"ranking": ["1", "2"]}),
        ("pairwise", {"better": 3}),
        ("pairwise", {"better": [1]}),
        ("pairwise", {"best": 1}),
    ],
)
def test_a_reply_of_another_form_is_not_read(method, reply):
    with pytest.raises(UnreadableReply):
        values_of(json.dumps(reply), method, [1.0, 1.0], 2)


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=8), st.floats(-20, 20))
def test_win_shares_sum_to_those_of_pairs_keep_the_order_and_ignore_a_shift(rewards, shift):
    shares = win_shares(rewards)
    assert sum(shares) == pytest.approx(len(rewards) / 2, abs=1e-9)
    assert win_shares([reward + shift for reward in rewards]) == pytest.approx(shares, abs=1e-6)
    best = max(range(len(rewards)), key=rewards.__getitem__)
    assert shares[best] == pytest.approx(max(shares), abs=1e-9)


@pytest.mark.parametrize(
    ("text", "pair"),
    [("It is short.", ("It is short.", 1.0)), ("a=b", ("a=b", 1.0)), ("short=2.5", ("short", 2.5))],
)
def test_a_criterion_may_have_a_weight(text, pair):
    assert weighted(text) == pair


@pytest.fixture
async def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(folder))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    sizes = {**SIZES, "max_context": 512}
    await connect().post("/v2/models/create", {"name": "m", "texts": TEXTS, "sizes": sizes})
    body = {"source_model_id": "m", "name": "j", "config": {"reward_model": True}}
    await connect().post("/v2/models/fork", body)
    (tmp_path / "judge.py").write_text(
        "def judge(runs):\n    return [min(1.0, len(run.content or '') / 100) for run in runs]\n"
    )
    yield folder
    disconnect(folder)


async def test_a_reward_model_grades_by_the_probability_of_being_better(home):
    judge = await open_judge(connect(), "j", group=2)
    job = await tasks.run(clerk, group=2, judge=judge)
    first, second = job.runs[:2]
    assert first.reward + second.reward == pytest.approx(1)
    assert 0 < first.reward < 1
    (part, _) = first.grade.subscores
    assert isinstance(part["info"]["reward"], float)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("j", {"group": 1}, "compares runs of a task, so give at least 2: --group 2"),
        ("j", {"criteria": ["It is short."]}, "takes no criteria"),
        ("judge.py", {"by": "ranking"}, "takes no criteria and no way of comparing"),
        ("judge.py", {"share": 0.0}, "share of the judge is 0"),
        ("m", {"by": "pairwise", "group": 1}, "give at least 2"),
        ("m", {"criteria": ["short=0"]}, "it must be above 0"),
        ("absent.py", {}, "absent.py"),
    ],
)
async def test_a_judge_that_cannot_be_used_is_refused(home, name, options, sentence):
    with pytest.raises(UsageError, match=sentence):
        await open_judge(connect(), name, **options)


class Heard(Reporter):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


async def test_training_states_the_most_requests_before_it_plays(home):
    (home.parent / "critic.py").write_text(
        "import json\n\n\ndef agent(messages, tools, trace):\n"
        '    runs = json.loads(messages[1]["content"])["runs"]\n'
        '    return json.dumps({"ranking": list(range(1, len(runs) + 1))})\n'
    )
    settings = {"group": 4, "tasks_per_step": 2, "dynamic_sampling": 1, "max_tokens": 4}
    judge = {"judge": "critic.py", "judge_by": "ranking"}
    config = TrainConfig(model="m", steps=3, lr=1e-3, **settings, **judge)
    stopped, heard = StopSignal(), Heard()
    stopped.request()
    await train(config, tasks=tasks, reporter=heard, stop=stopped)
    line = "judge critic.py: 2 requests for a task of 4 runs, at most 24 in all"
    assert any(note.startswith(line) for note in heard.notes), heard.notes

    report = await train(config, tasks=tasks, reporter=(heard := Heard()))
    assert report.next_step == 3
    (spent,) = [note for note in heard.notes if note.startswith("judge critic.py  ranking")]
    assert int(spent.split("ranking, ")[1].split()[0]) <= 24


async def test_training_learns_from_the_judges_rewards(home):
    config = TrainConfig(
        model="m", judge="judge.py", steps=1, group=4, tasks_per_step=2, lr=1e-3, seed=0
    )
    report = await train(config, tasks=tasks)
    (row,) = report.history
    # The environment grades every run 0.5, which has no signal; the judge's rewards differ.
    assert row["metrics"]["groups_without_spread:sum"] == 0
    earned = row["metrics"]["rollout_reward:mean"]
    assert 0 <= earned <= 1
    assert earned != 0.5
    assert report.head is not None


def test_the_command_states_the_requests_and_what_is_known_of_the_judge(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.py").write_text(
        'from hud import Environment\n\nenv = Environment("desk")\n\n\n@env.template()\nasync def greet(name: str):\n'
        '    yield f"Greet {name}."\n    yield 0.5\n\n\ntasks = [greet(name=name) for name in ("Ana", "Ben")]\n'
    )
    (tmp_path / "clerk.py").write_text(
        'async def agent(run):\n    return "Hello " * (1 + run.attempt)\n'
    )
    (tmp_path / "critic.py").write_text(
        "import json\n\n\ndef agent(messages, tools, trace):\n"
        '    runs = json.loads(messages[1]["content"])["runs"]\n'
        '    sizes = [len(run["answer"]) for run in runs]\n'
        '    return json.dumps({"better": 1 + sizes.index(max(sizes))})\n'
    )
    judge = ["--judge", "critic.py", "--judge-by", "pairwise", "--criteria", "It is long.=2"]
    assert command(["eval", "tasks.py", "clerk.py", "--all", "--group", "3", *judge]) == 0
    printed = capsys.readouterr().out
    assert "judge critic.py: 6 requests for a task of 3 runs, at most 12 in all" in printed
    assert "mean reward  0.500" in printed
    assert "best by place  0.50 0.50" in printed
    assert "both orders    6 of 6 have the same best run" in printed
    runs = json.loads(_json(capsys, ["jobs", "latest", "--json"]))["traces"]
    for row in runs:
        grade = str(float(row["reward"] > 0.5))
        assert command(["label", row["id"], f"good={grade}", "--as", "ana"]) == 0
    capsys.readouterr()
    graded = ["grade", "latest", "--with", "tasks.py", *judge]
    assert command(graded) == 0
    assert "people's good: Krippendorff's alpha 0." in capsys.readouterr().out
    assert command(["eval", "tasks.py", "clerk.py", "--judge-by", "ranking"]) == 2
    disconnect(tmp_path / "home")


def _json(capsys, arguments):
    capsys.readouterr()
    assert command(arguments) == 0
    return capsys.readouterr().out
