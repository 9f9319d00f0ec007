"""Jobs, runs and tasksets at a prompt and in a notebook."""

import math
import sys
from html.parser import HTMLParser
from types import ModuleType

import pytest

from hud import Environment
from hud.agents import ScriptedAgent
from hud.errors import UsageError
from hud.eval import Taskset
from hud.eval.results.data_frame import data_frame
from hud.learning.wire_types import StepResult
from hud.trace import AgentStep, ToolCall, ToolResult, ToolStep, Trace

env = Environment("shop")


@env.template()
async def price(item: str, currency: str = "EUR"):
    answer = yield f"What does {item} cost?"
    if item == "glass":
        raise KeyError("<script>alert(1)</script>")
    yield float(len(answer) % 2)


async def answer(run):
    return "<b>1</b>" if run.attempt else "12"


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.delenv("HUD_API_URL", raising=False)


class Tags(HTMLParser):
    """Collects tags and text; fails on what is not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.texts = [], set(), []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


async def played(*items):
    return await Taskset("shop", [price(item=item) for item in items]).run(
        ScriptedAgent(answer), group=2
    )


async def test_a_job_is_three_lines():
    job = await played("tea", "milk")
    assert repr(job).split("\n") == [
        "Job 'shop': 4 runs of 2 tasks",
        "reward 0.000 [0.000, 0.988]",
        f"hud jobs {job.id[:12]}",
    ]
    broken = repr(await played("tea", "glass")).split("\n")
    assert len(broken) == 3
    assert broken[1].startswith("reward 0.000, 2 failed: 2× grader: Template 'price' raised KeyE")


async def test_a_run_is_one_line():
    job = await played("tea", "glass")
    first, last = job.runs[0], job.runs[-1]
    assert repr(first) == f"Run {first.trace_id[:12]} of price(item='tea') #0: reward 0.000, done"
    assert f"of price(item='glass') #{last.attempt}: reward –, grader: Template" in repr(last)


async def test_notebooks_show_tables_in_which_all_text_is_escaped():
    job = await played("tea", "<img src=x>", "glass")
    for shown in (job, *job.runs, Taskset("<i>", [price(item="<u>")])):
        found = Tags(shown._repr_html_())
        assert {"table", "td"} <= found.seen
        assert not found.seen & {"script", "img", "i", "u"}
    texts = Tags(job._repr_html_()).texts
    assert "price(item='tea')" in texts
    assert any("<script>" in text for text in texts), "as text"


async def test_a_job_in_a_notebook_has_its_whole_interval():
    job = await played("tea", "lamp", "door")
    interval = job.statistics.interval
    shown = f"reward {job.reward:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
    assert shown in Tags(job._repr_html_()).texts


def test_a_long_taskset_says_how_many_tasks_are_not_shown():
    tasks = Taskset("many", [price(item=str(number)) for number in range(60)])
    assert "10 more" in tasks._repr_html_()
    assert repr(tasks) == "Taskset('many', 60 tasks)"


async def test_a_trace_a_task_and_statistics_have_an_html_form():
    job = await played("tea", "glass")
    run = job.runs[0]
    trace = Tags(run.trace._repr_html_())
    assert {"table", "b"} <= trace.seen
    assert any("What does tea cost?" in text for text in trace.texts)
    assert "12" in trace.texts
    task = Tags(run.task._repr_html_())
    assert {"'tea'", "shop", "price"} <= set(task.texts)
    numbers = Tags(job.statistics._repr_html_())
    assert "2 of 4" in numbers.texts
    assert "failed: grader" in numbers.texts


def test_a_tool_step_is_shown_with_its_call_and_result():
    trace = Trace()
    call = ToolCall(name="look", arguments={"where": "<here>"})
    trace.record(AgentStep(tool_calls=[call]))
    trace.record(ToolStep(call=call, result=ToolResult.of_text("no", is_error=True)))
    texts = Tags(trace._repr_html_()).texts
    assert 'look({"where":"<here>"})' in texts
    assert "look failed: no" in texts


def test_a_training_step_has_an_html_form():
    step = StepResult(
        step=3,
        checkpoint_id="c3",
        sampler_path="s",
        state_path="t",
        model="m",
        applied=True,
        metrics={"reward:mean": 0.5, "loss:mean": 0.25},
        num_datums=8,
    )
    texts = Tags(step._repr_html_()).texts
    assert "step 3: reward 0.500" in texts
    assert {"c3", "loss:mean", "0.25"} <= set(texts)


async def test_a_notebook_shows_progress_in_one_line(monkeypatch, capsys):
    await played("tea")
    assert capsys.readouterr().out == ""
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    await played("tea")
    shown = capsys.readouterr().out
    assert shown.count("\r") == 2
    assert shown.splitlines()[-1].startswith("2/2 runs  mean reward 0.000")


async def test_a_job_becomes_a_data_frame(monkeypatch):
    job = await played("tea", "milk")
    pandas = pytest.importorskip("pandas")
    frame = job.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["args.item"]) == ["tea", "tea", "milk", "milk"]
    assert frame["reward"].mean() == job.reward


async def test_columns_of_numbers_are_numeric_also_without_a_value():
    pytest.importorskip("pandas")
    frame = (await played("glass")).to_pandas()
    assert frame["reward"].isna().all()
    assert frame["cost_usd"].sum() == 0
    assert math.isnan(frame["reward"].mean())
    empty = data_frame([])
    assert list(empty.columns) == [one for one in frame.columns if not one.startswith("args.")]
    assert math.isnan(empty["reward"].mean())


async def test_without_pandas_one_sentence_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    job = await played("tea")
    with pytest.raises(UsageError, match="needs pandas.*pip install pandas"):
        job.to_pandas()
