"""`hud plan`: a table that fits a terminal, prices that can be replaced, JSON, simulated preemption, and one GPU."""

import json

import pytest
from click.testing import CliRunner
from tests.engine.picture_folders import write_folder
from tests.train.planning.test_planning import known

from hud.cli.training.plan import command
from hud.errors import UsageError
from hud.train.planning.setup import Setup


def plan(*arguments):
    done = CliRunner().invoke(command, arguments, env={"COLUMNS": "80"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def cells(said, name):
    """Return the cells of the table's first row with this name."""
    row = next(line for line in said.splitlines() if line.strip().startswith(name))
    return row.replace(name, "", 1).split()[-3:]


@pytest.mark.parametrize("training", ["full", "8bit", "offload", "lora"])
@pytest.mark.parametrize("gpu", ["H100", "H200"])
def test_every_line_fits_80_columns(training, gpu):
    said = plan("--training", training, "--gpu", gpu, "--steps", "123456", "--network", "0.01")
    assert max(map(len, said.splitlines())) <= 80


def test_the_table_is_the_one_that_users_know():
    said = plan()
    assert cells(said, "trainer, on demand: GPUs") == ["1", "4", "16"]
    assert cells(said, "samplers, spot: GPUs") == ["2", "8", "16"]
    assert cells(said, "bottleneck") == ["trainer"] * 3
    assert "2 x 1        2 x 4        2 x 8" in said
    assert cells(said, "weights over 100 Gb/s, s") == ["1.2", "5.2", "11"]
    assert "70B trains on 16 GPUs, not 8" in said
    flat = " ".join(said.split())
    assert "Prices of 2 July 2026, USD an hour: H200 4.54 on demand, 3.31 on spot" in flat
    # A day of one H200 on demand and two on spot.
    assert cells(said, "a day, USD")[0] == f"{24 * (4.54 + 2 * 3.31):,.0f}"


def test_prices_can_be_replaced(tmp_path):
    prices = tmp_path / "prices.toml"
    prices.write_text(
        'date = 2027-01-31\ncurrency = "EUR"\n[gpus.H200]\non_demand = 2\nspot = 1\n'
        "[cpu_core]\non_demand = 0.1\nspot = 0.05\n"
    )
    said = plan("--prices", str(prices))
    flat = " ".join(said.split())
    assert "Prices of 31 January 2027, EUR an hour: H200 2 on demand, 1 on spot" in flat
    nodes = int(cells(said, "environments, spot: 64-core nodes")[0])
    assert cells(said, "a day, EUR")[0] == f"{24 * (2 + 2 * 1 + nodes * 64 * 0.05):,.0f}"


def test_a_gpu_without_a_price_has_no_cost():
    said = plan("--gpu", "H100")
    assert "a day" not in said
    assert "The prices (2 July 2026) have no H100: no cost." in " ".join(said.split())
    assert "The published table is of H200 GPUs." in said
    assert "day_cost" not in json.loads(plan("--gpu", "H100", "--json"))["plans"][0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("date = 2027-01-31\n[gpus.H200]\non_demand = 2\n", "gpus.H200.spot"),
        ("date = 2027-01-31\n[gpus.H200]\non_demand = -2\nspot = 1\n", "gpus.H200.on_demand"),
        ("date = 2027-01-31\n[gpus.H200]\non_demand = nan\nspot = 1\n", "gpus.H200.on_demand"),
        ("[gpus]\n", "date"),
        ("date = 2027-01-31\nprice = 1\n", "price"),
        ("date = ", "not TOML"),
    ],
)
def test_what_is_no_file_of_prices_is_said(tmp_path, text, said):
    prices = tmp_path / "prices.toml"
    prices.write_text(text)
    with pytest.raises(UsageError) as raised:
        plan("--prices", str(prices))
    assert said in str(raised.value)


def test_json_has_inputs_plans_and_costs():
    found = json.loads(plan("--json", "--training", "lora", "--sampler-preemptions", "2"))
    assert [one["model"] for one in found["plans"]] == ["7B", "32B", "70B"]
    assert found["fleet"]["preemption"]["samplers_per_hour"] == 2
    assert found["prices"]["date"] == "2026-07-02"
    first = found["plans"][0]
    assert first["run_cost"] == pytest.approx(first["run_seconds"] / 86400 * first["day_cost"])
    assert found["trainer_gpus"]["full"] == [2, 8, 16]
    assert len(found["comparison"]) >= 2


def test_more_preemption_and_a_slower_network_cost_more():
    calm, rough = (
        json.loads(plan("--json", "--sampler-preemptions", rate, "--environment-seconds", "60"))
        for rate in ("0", "6")
    )
    fast, slow = (json.loads(plan("--json", "--network", rate)) for rate in ("100", "10"))
    for place in range(3):
        assert rough["plans"][place]["run_cost"] >= calm["plans"][place]["run_cost"]
        assert slow["plans"][place]["run_cost"] > fast["plans"][place]["run_cost"]
        assert slow["plans"][place]["broadcast_seconds"] == pytest.approx(
            10 * fast["plans"][place]["broadcast_seconds"]
        )


def test_a_simulation_takes_rates_of_preemption(monkeypatch):
    async def found(*arguments):
        return known(), Setup(steps=20, environments=8, group=4, tasks_per_step=4), (20, 100.0)

    monkeypatch.setattr("hud.cli.training.plan_simulation.recorded", found)
    calm = plan("m", "--simulate", "--nodes", "4")
    assert "lost rollouts" not in calm
    rough = ["m", "--simulate", "--nodes", "4", "--node-preemptions", "30", "--away", "20"]
    said = plan(*rough)
    assert "Preemptions an hour: 30 of each of 4 nodes, 0 of each of 1 samplers" in said
    told = json.loads(plan(*rough, "--json"))
    (one,) = told["simulated"]
    assert one["prediction"]["lost"] > 0
    assert one["setup"]["nodes"] == 4
    assert told["check"]["steps"] == 20
    undisturbed = json.loads(plan("m", "--simulate", "--json"))["simulated"][0]["prediction"]
    assert one["prediction"]["seconds"] > undisturbed["seconds"]


SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}


def test_the_memory_of_a_folder_on_one_gpu(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    said = plan(str(tmp_path), "--gpu", "h100")
    assert "4.02B parameters, full fine-tuning, on one H100" in said
    assert "Default learning rates: 4.3e-06 by reward, 4.3e-05 supervised" in said
    assert "Does not fit by" in said
    assert "--optimizer-states 8bit" in said
    assert max(map(len, said.splitlines())) <= 80
    fits = plan(str(tmp_path), "--gpu", "H100", "--training", "lora")
    assert "Does not fit" not in fits
    assert "left of 90% of the memory" in fits


def test_the_memory_of_a_folder_with_a_vision_tower(tmp_path):
    write_folder(tmp_path, "qwen3_vl")
    lines = plan(str(tmp_path), "--gpu", "h100").splitlines()
    assert "0.00B in the vision tower" in lines[0]
    assert any(line.startswith("vision tower, if all tokens are pictures") for line in lines)
    assert any(line.startswith("pixels of those pictures") for line in lines)
    assert max(map(len, lines)) <= 90


def test_an_unknown_gpu_lists_the_known_ones():
    done = CliRunner().invoke(command, ["m", "--gpu", "h9"])
    assert done.exit_code == 2
    assert "h100" in done.output.lower()
    assert "h200" in done.output.lower()


def test_a_simulation_without_a_model_is_refused():
    with pytest.raises(UsageError, match="takes a MODEL"):
        plan("--simulate")
