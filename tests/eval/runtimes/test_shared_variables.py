"""Runs in this process that change a module's variables are warned of: their rewards may depend on each other."""

import logging

import pytest

from hud.agents import ScriptedAgent
from hud.environment import load_environment
from hud.eval import ForkRuntime, Taskset

INVENTORY = """
from hud import Environment

env = Environment("inventory")
{variables}


@env.template()
async def take(amount: int):
    {setup}
    answer = yield f"take {{amount}}"
    yield 1.0


tasks = [take(amount=amount) for amount in range(4)]
"""
CHANGES = {
    "dict": ("STOCK = {}", "STOCK['bolts'] = amount", "STOCK"),
    "nested": ("STOCK = {'a': {'b': [1]}}", "STOCK['a']['b'].append(amount)", "STOCK"),
    "number": ("count = 0", "global count; count += 1", "count"),
    "object": (
        "class Shop:\n    def __init__(self):\n        self.sold = []\n\nshop = Shop()",
        "shop.sold.append(amount)",
        "shop",
    ),
}
QUIET = {
    "constant": ("STOCK = {'bolts': 3}", "STOCK.get('bolts')"),
    "own state": ("STOCK = {'bolts': 3}", "env.state.stock = dict(STOCK)"),
    "cache": ("_cache = {}", "_cache[amount] = 1"),
    "local": ("STOCK = {'bolts': 3}", "stock = dict(STOCK); stock['bolts'] -= amount"),
}


ODD = {
    "integer": ("HUGE = 10 ** 5000", "HUGE"),
    "integer in a list": ("HUGE = [[10 ** 6000]]", "HUGE"),
    "text": (
        "class Shop:\n    def __repr__(self):\n        raise OSError\n\nshop = {Shop: Shop()}",
        "shop",
    ),
    "attribute": (
        "class Shop:\n    def __getattr__(self, name):\n        raise OSError(name)\n\nshop = Shop()",
        "shop",
    ),
    "class": (
        "class Shop(dict):\n    def items(self):\n        raise OSError\n    __iter__ = __len__ = items\n\nshop = Shop()",
        "shop",
    ),
}


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)


def inventory(tmp_path, variables, setup):
    path = tmp_path / "inventory.py"
    path.write_text(INVENTORY.format(variables=variables, setup=setup))
    return path


async def answer(run):
    return "1"


async def warnings_of(path, caplog, runtime=None, **options):
    with caplog.at_level(logging.WARNING, "hud.eval"):
        await Taskset.from_file(path).run(ScriptedAgent(answer), runtime=runtime, **options)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("change", list(CHANGES))
async def test_a_variable_that_runs_change_is_named_once(tmp_path, caplog, change):
    variables, setup, name = CHANGES[change]
    (warning,) = await warnings_of(inventory(tmp_path, variables, setup), caplog, group=4)
    assert warning.startswith(f"note: inventory.py: runs changed {name} of the module")
    assert "env.state" in warning
    assert "--runtime fork" in warning


@pytest.mark.slow
@pytest.mark.parametrize("change", list(QUIET))
async def test_what_runs_do_not_share_is_no_warning(tmp_path, caplog, change):
    variables, setup = QUIET[change]
    assert await warnings_of(inventory(tmp_path, variables, setup), caplog, group=4) == []


@pytest.mark.slow
async def test_runs_with_a_process_each_are_not_warned_of(tmp_path, caplog):
    variables, setup, _ = CHANGES["dict"]
    path = inventory(tmp_path, variables, setup)
    assert await warnings_of(path, caplog, ForkRuntime(load_environment(path))) == []


async def test_one_run_shares_nothing(tmp_path, caplog):
    variables, setup, _ = CHANGES["dict"]
    tasks = Taskset.from_file(inventory(tmp_path, variables, setup))
    with caplog.at_level(logging.WARNING, "hud.eval"):
        await tasks[0].run(ScriptedAgent(answer))
    assert caplog.records == []


@pytest.mark.parametrize("odd", list(ODD))
async def test_a_variable_without_a_text_fails_no_run(tmp_path, odd):
    """Their runs were infrastructure failures."""
    job = await Taskset.from_file(inventory(tmp_path, *ODD[odd])).run(ScriptedAgent(answer))
    assert [run.reward for run in job.runs] == [1.0] * 4


async def test_a_huge_integer_that_runs_change_is_named(tmp_path, caplog):
    change = ("HUGE = 10 ** 5000", "global HUGE; HUGE += 1")
    (warning,) = await warnings_of(inventory(tmp_path, *change), caplog, group=4)
    assert "runs changed HUGE" in warning
