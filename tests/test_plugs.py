"""Plugs: what joins by entry points, this distribution's and a stranger's."""

from __future__ import annotations

import shutil

import pytest

from hud.errors import NotFoundError, UsageError
from hud.plugs import load, own_entry_points, plugs
from tests.strangers import installer, write_distribution


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    return installer(tmp_path, monkeypatch)


def test_the_benchmarks_of_this_distribution_are_found_first():
    names = list(plugs("hud.benchmarks"))
    assert names[:7] == [
        "autonomy",
        "bfcl",
        "incident-lab",
        "miniwob",
        "reasoning-gym",
        "sheetbench",
        "tau2",
    ]
    assert {point.module.partition(".")[0] for point in own_entry_points()} >= {"hud_benchmarks"}


def test_a_plug_of_another_distribution_joins(stranger):
    stranger("hud.benchmarks", "chess", "plug = 64")
    assert load(plugs("hud.benchmarks")["chess"], int) == 64


def test_a_distribution_joins_and_leaves_while_the_process_runs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "chess" not in plugs("hud.benchmarks")
    write_distribution(tmp_path, "plug = 64", {"hud.benchmarks": {"chess": "strange_plug:plug"}})
    assert "chess" in plugs("hud.benchmarks")
    shutil.rmtree(tmp_path / "strange_plug-1.0.dist-info")
    assert "chess" not in plugs("hud.benchmarks")


def test_a_name_that_is_taken_is_refused_with_both_distributions(stranger):
    stranger("hud.benchmarks", "miniwob", "")
    with pytest.raises(UsageError, match=r"openhud .*strange-plug .*Uninstall one of them"):
        plugs("hud.benchmarks")


def test_a_plug_that_cannot_be_imported_names_its_distribution(stranger):
    stranger("hud.benchmarks", "chess", "raise NotImplementedError('no board')")
    with pytest.raises(UsageError, match=r"'chess' of strange-plug .*no board.*uninstall it"):
        load(plugs("hud.benchmarks")["chess"], int)


def test_a_benchmark_that_is_left_out_says_why():
    from hud.benchmarks import benchmark

    with pytest.raises(NotFoundError, match="reasoning-gym/codeio is left out: its questions"):
        benchmark("reasoning-gym/codeio")


def test_an_integration_is_one_module_under_both_names():
    import hud.integrations.harbor
    import hud.integrations.harbor.task_folder as public

    import hud_integrations.harbor.task_folder as own

    assert public is own
    assert hud.integrations.harbor.HarborEnvironment.__module__.startswith("hud_integrations.")
    assert own.__spec__.name == "hud_integrations.harbor.task_folder"
    with pytest.raises(ModuleNotFoundError, match=r"hud\.integrations\.chess"):
        import hud.integrations.chess


def test_a_plug_of_another_type_is_refused(stranger):
    from hud.exchange import exports

    stranger("hud.exports", "csv", "plug = 3")
    with pytest.raises(
        UsageError, match=r"'csv' of strange-plug .* is of type int; it must be hud"
    ):
        exports()
