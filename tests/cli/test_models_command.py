"""`hud models`: every subcommand, its JSON, and the tree as it is drawn."""

import asyncio
import json
import time
from pathlib import Path

import pytest
import torch

from hud.cli.main import run
from hud.cli.models.tree import draw_tree
from hud.cli.training.panel import sparkline
from hud.client import disconnect
from hud.engine.lora import load_adapter, merge
from hud.engine.pretrained import load_decoder
from hud.train import TrainingClient, TrajectoryPayload, TrajectorySample

TASKS = '''
from hud import Environment

env = Environment("vowels")

@env.tool
def alphabet() -> str:
    """All letters."""
    return "abcdefghijklmnopqrstuvwxyz"

@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 20)

tasks = [say(word=word) for word in ("red", "green", "blue", "yellow")]
'''


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(folder))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.py").write_text(TASKS)
    yield folder
    disconnect(folder)


@pytest.fixture
def hud(home, capsys):
    def call(line, code=0):
        capsys.readouterr()
        assert run(line.split()) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    return call


CREATE = (
    "models create tiny --tasks tasks.py --hidden 32 --layers 1 --vocab-size 300 --max-context 96"
)
TRAIN = "train tiny tasks.py --steps 2 --group 4 --tasks-per-step 2 --max-tokens 8 --lr 0.001 --max-turns 2"


@pytest.mark.slow
def test_a_model_is_made_trained_branched_compared_exported_and_removed(hud, tmp_path):
    assert "No models yet" in hud("models")
    assert "Then: hud train tiny tasks.py\n" in hud(CREATE)
    assert json.loads(hud("models list --json"))[0]["model_name"] == "tiny"
    report = json.loads(hud(f"{TRAIN} --held-out tasks.py --json"))
    assert report["finished"]
    assert [score["step"] for score in report["scores"]] == [0, 2]
    assert (tmp_path / "home" / "training" / report["run_id"] / "curves.png").stat().st_size > 1000
    nodes = json.loads(hud("models checkpoints tiny --json"))
    assert [node["is_active"] for node in nodes] == [False, True]

    assert "serves the weights it began with" in hud("models head tiny --set base")
    assert nodes[0]["name"] in hud(f"models head tiny --set {nodes[0]['id'][:8]}")
    hud(f"{TRAIN} --fresh --seed 1")
    drawn = hud("models checkpoints tiny")
    assert f"from {nodes[0]['name']}" in drawn, "training on from an older node makes a branch"
    assert drawn.count("▶") == 1

    compared = json.loads(
        hud("models compare tiny base head --tasks tasks.py --group 2 --max-tokens 8 --json")
    )
    assert compared["tasks"] == 4
    assert compared["difference"]["low"] <= compared["difference"]["mean"]

    hud("models fork tiny --name branch")
    hud("models export tiny -o out")
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert "not empty" in hud("models export tiny -o out", 2)
    hud("models add out --name again")
    assert "'branch' began with its files" in hud("models rm tiny -y", 2)
    for slug in ("branch", "tiny", "again"):
        assert f"Removed {slug}" in hud(f"models rm {slug} -y")
    assert json.loads(hud("models list --json")) == []


@pytest.mark.slow
def test_what_is_not_there_is_said_with_close_matches(hud):
    hud(CREATE)
    assert "did you mean 'tiny'" in hud("models head tiney", 2)
    assert "no checkpoint 'step-9'" in hud("models head tiny --set step-9", 2)
    assert "already a model 'tiny'" in hud(CREATE, 2)


def node(name, parent=None, *, active=False, pruned=False, reward=0.5):
    return {
        "id": name, "name": name, "prev_model_checkpoint_id": parent, "is_active": active, "pruned": pruned,
        "metrics": {"loss:sum": -1.0, "action_tokens:sum": 10.0}, "mean_reward": reward, "loss_fn": "ppo",
        "step": 1, "training_step": None, "promotion": None, "system_prompt": None,
    }  # fmt: skip


MODEL = {"model_name": "m", "config": {"origin_checkpoint": None, "source": "preset tiny"}}


@pytest.mark.slow
def test_a_training_run_begins_with_nothing_and_says_what_it_discarded(hud):
    hud(CREATE)
    samples = [
        TrajectorySample(
            prompt_token_ids=[5], output_token_ids=[6, 7 + place], output_logprobs=[-5.0, -5.0]
        )
        for place in range(4)
    ]
    left_over = [
        TrajectoryPayload(samples=[one], reward=1e6 * place) for place, one in enumerate(samples)
    ]
    assert hud("models discard tiny") == "Nothing is accumulated for tiny.\n"
    asyncio.run(TrainingClient("tiny").forward_backward(left_over))
    said = hud(TRAIN)
    assert "1 pass over 4 runs of process" in said.replace("\n", " ")
    nodes = json.loads(hud("models checkpoints tiny --json"))
    assert nodes[0]["num_traces"] <= 8
    assert nodes[0]["metrics"]["grad_norm:mean"] < 1e5
    asyncio.run(TrainingClient("tiny").forward_backward(left_over))
    assert json.loads(hud("models discard tiny --json"))["discarded"]["runs"] == 4


@pytest.mark.slow
def test_checkpoints_whose_files_were_deleted_say_so_and_named_ones_stay(hud):
    hud(CREATE)
    train = TRAIN.replace("--steps 2", "--steps 1")
    hud(f"{train} --keep all")
    (first,) = json.loads(hud("models checkpoints tiny --json"))
    assert "is named good" in hud(f"models name tiny {first['id'][:8]} good")
    hud(f"{TRAIN.replace('--steps 2', '--steps 3')} --keep 1 --keep-every 100 --fresh")
    nodes = json.loads(hud("models checkpoints tiny --json"))
    assert [one["pruned"] for one in nodes] == [False, True, True, False]
    assert nodes[0]["name"] == "good"
    lines = hud("models checkpoints tiny --all").splitlines()
    assert ["files deleted" in line for line in lines[2:6]] == [False, True, True, False]
    gone = nodes[2]["name"]
    for line in (
        f"models head tiny --set {gone}",
        f"models export tiny -o out --checkpoint {gone}",
    ):
        said = " ".join(hud(line, code=2).split())
        assert f"'{gone}' of 'tiny' were deleted to save space" in said
        assert "whose files are there: good" in said
    assert "good" in hud("models head tiny --set good")
    hud(f"models name tiny {nodes[2]['id']} late", code=2)
    hud(f"models name tiny {nodes[3]['id']} good", code=2)
    hud("models name tiny good base", code=2)


def test_a_branch_gets_a_lane_of_its_own():
    nodes = [node("a"), node("b", "a"), node("c", "a", active=True), node("d", "b"), node("e", "c")]
    lines = [line[:14].rstrip() for line in draw_tree(MODEL, nodes)]
    assert lines[0].startswith("○ m")
    assert lines[1] == "  checkpoint"
    assert lines[2:] == ["● a", "● b", "├─▶ c", "● │ d", "  ● e"]


@pytest.mark.slow
def test_a_tree_of_many_checkpoints_is_drawn_in_time_linear_in_them():
    names = [str(place) for place in range(20_000)]
    nodes = [node(name, parent) for name, parent in zip(names, [None, *names], strict=False)]
    before = time.process_time()
    assert len(list(draw_tree(MODEL, nodes))) == len(nodes) + 2
    assert time.process_time() - before < 6  # Quadratic: 12 s.


def test_without_checkpoints_the_beginning_serves():
    assert next(draw_tree(MODEL, [])).startswith("▶ m  began with preset tiny")


def test_stretches_of_pruned_checkpoints_are_one_line():
    names = [f"n{place}" for place in range(8)]
    nodes = [
        node(name, parent, pruned=0 < place < 6, active=place == 7)
        for place, (name, parent) in enumerate(zip(names, [None, *names], strict=False))
    ]
    lines = list(draw_tree(MODEL, nodes, everything=False))
    assert lines[3] == "┆ 5 more steps, files deleted (--all)"
    assert len(lines) == 6
    assert len(list(draw_tree(MODEL, nodes))) == 10


def test_a_sparkline_spans_its_values():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([]) == ""
    assert sparkline([0.3, 0.3]) == "▁▁"


@pytest.mark.slow
def test_an_adapter_is_exported_alone_and_is_that_of_the_head(hud, tmp_path):
    hud(f"{CREATE} --lora-rank 4")
    assert "has no adapter there" in hud("models export tiny --to peft -o early", 2)
    hud(TRAIN.replace("0.001", "0.5"))
    hud("models export tiny --to peft -o adapter")
    hud("models export tiny -o merged")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    base = config["base_model_name_or_path"]
    decoder = load_decoder(Path(base))
    load_adapter(decoder, tmp_path / "adapter")
    merge(decoder)
    merged = load_decoder(tmp_path / "merged").state_dict()
    assert all(torch.allclose(value, merged[name]) for name, value in decoder.state_dict().items())
    untrained = load_decoder(Path(base)).state_dict()
    assert any(not torch.equal(value, untrained[name]) for name, value in merged.items())
    assert (tmp_path / "adapter" / "tokenizer.json").is_file()
    assert "not empty" in hud("models export tiny --to peft -o adapter", 2)
