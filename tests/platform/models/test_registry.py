"""Models: named once, found in many ways, sharing files, and removed only when nobody needs them."""

import json
import shutil
from datetime import UTC, datetime

import pytest
import torch
from safetensors.torch import save_file
from tests.engine.tiny_policy import tiny_folder

from hud.engine.pretrained import empty_decoder
from hud.errors import ConflictError, NotFoundError, StoreError, UsageError
from hud.trace import dashed, new_id
from hud_platform.models.checkpoint_files import Manifest, write_checkpoint
from hud_platform.models.checkpoint_tree import node_name
from hud_platform.models.records import CheckpointRecord, ModelConfig
from hud_platform.models.registry import Registry, slug_of
from hud_platform.store import Store
from hud_platform.store.tables import LOCAL_TEAM

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 400,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


@pytest.fixture
def registry(tmp_path):
    home = tmp_path / "home"
    store = Store.open(home)
    yield Registry(store, home, team=LOCAL_TEAM)
    store.close()


@pytest.fixture
def folder(tmp_path):
    """A model's folder with weights of 0."""
    made = tmp_path / "weights"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(QWEN3))
    shutil.copy(tiny_folder() / "tokenizer.json", made / "tokenizer.json")
    shapes = empty_decoder(made).state_dict()
    save_file(
        {name: torch.zeros(tensor.shape) for name, tensor in shapes.items()},
        made / "model.safetensors",
    )
    return made


def train_a_step(registry, slug, step=1, *, lora=False):
    """Append a checkpoint as an optimizer step would, without any weights."""
    model = registry.model(slug)
    identifier = new_id()
    name = node_name(step, identifier)
    place = registry.tree.place(model.id) / name

    def write(path):
        (path / "sampler").mkdir()
        if lora:
            (path / "sampler" / "adapter_config.json").write_text("{}")
        (path / "sampler" / "model.safetensors").write_bytes(f"weights {identifier}".encode())
        (path / "state.safetensors").write_bytes(b"moments")

    write_checkpoint(place, Manifest(id=identifier, model_id=model.id, step=step), write)
    node = CheckpointRecord(
        id=identifier,
        model_id=model.id,
        parent_id=model.head_checkpoint_id,
        step=step,
        name=name,
        folder=place,
        created_at=datetime.now(UTC),
        mean_reward=0.5,
    )
    registry.tree.append(node, expected_head=model.head_checkpoint_id)
    return node


def test_a_model_is_found_by_slug_name_id_dashed_id_and_unique_prefix(registry, folder):
    model = registry.add(str(folder), "My Policy")
    assert model.slug == "my-policy"
    for reference in ("my-policy", "My Policy", model.id, dashed(model.id), model.id[:6]):
        assert registry.model(reference).id == model.id


def test_an_unknown_model_comes_with_close_matches(registry, folder):
    with pytest.raises(NotFoundError, match="hud models create"):
        registry.model("triage")
    registry.add(str(folder), "triage")
    with pytest.raises(NotFoundError, match="did you mean 'triage'"):
        registry.model("triagge")


def test_a_name_can_be_taken_only_once(registry, folder):
    registry.add(str(folder), "one")
    with pytest.raises(ConflictError, match="already a model 'one'"):
        registry.add(str(folder), "One")


@pytest.mark.parametrize("name", ["", "  ", "-x", "x" * 101, "ünï", "a\nb;c", "../up"])
def test_a_name_that_makes_no_slug_is_refused(name):
    with pytest.raises(UsageError, match="not a valid name for a model"):
        slug_of(name)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_is_no_model_says_what_is_missing(registry, folder, missing):
    (folder / missing).unlink()
    with pytest.raises(UsageError, match=missing.replace("model.", r"\*\.")):
        registry.add(str(folder), "broken")
    assert registry.models() == []


@pytest.mark.parametrize(
    "odd",
    [
        {"num_attention_heads": 0},
        {"hidden_size": "64"},
        {"num_hidden_layers": 10**9},
        {"vocab_size": -1},
        {"num_key_value_heads": 3},
        {"num_key_value_heads": True},
        {"max_position_embeddings": -5},
        {"max_position_embeddings": 10**12},
        {"rms_norm_eps": "nan"},
        {"rms_norm_eps": float("nan")},
        {"rms_norm_eps": -1.0},
        {"rope_theta": float("inf")},
        {"rope_theta": 0},
        {"rope_scaling": {"rope_type": "linear", "factor": 0}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"head_dim": 7},
        {"tie_word_embeddings": "yes"},
        {"eos_token_id": "end"},
        {"eos_token_id": [-3]},
    ],
    ids=str,
)
def test_odd_values_of_a_config_are_refused_when_a_model_is_added(registry, folder, odd):
    (folder / "config.json").write_text(json.dumps({**QWEN3, **odd}))
    with pytest.raises(UsageError, match="config.json"):
        registry.add(str(folder), "odd")
    assert registry.models() == []


def test_a_lora_target_that_the_model_lacks_is_refused_when_it_is_added(registry, folder):
    config = ModelConfig(training="lora", lora_targets=("q_proj", "v_porj"))
    with pytest.raises(UsageError, match="no layer named v_porj; .* q_proj, up_proj, v_proj"):
        registry.add(str(folder), "typo", config=config)
    registry.add(str(folder), "typo")
    with pytest.raises(UsageError, match="no layer named v_porj"):
        registry.fork("typo", "fork", config=config)


def test_a_source_that_is_neither_folder_nor_hub_id_is_said_to_be_so(registry):
    with pytest.raises(NotFoundError, match="There is no folder"):
        registry.add("no such place", "x")


def test_a_fork_begins_at_its_bases_head_and_shares_its_files(registry, folder):
    base = registry.add(str(folder), "base-model")
    node = train_a_step(registry, "base-model")
    fork = registry.fork("base-model", "fork")
    assert fork.head_checkpoint_id == node.id
    assert fork.base_model_id == base.id
    assert registry.weights(fork, fork.head_checkpoint_id).folder == node.folder / "sampler"
    assert not (registry.home / "models" / fork.id).exists()
    # What it learns is its own; going back goes to where it began.
    own = train_a_step(registry, "fork", 2)
    assert own.parent_id == node.id
    assert [n.id for n in registry.tree.nodes(fork)] == [own.id]
    assert registry.tree.find(registry.model("fork"), "base") == node.id


def test_a_fork_by_lora_puts_its_adapter_on_what_the_base_learned(registry, folder):
    registry.add(str(folder), "full")
    node = train_a_step(registry, "full")
    fork = registry.fork("full", "adapted", config=ModelConfig(training="lora", lora_rank=4))
    assert fork.folder == node.folder / "sampler"
    assert fork.head_checkpoint_id is None
    assert node.id in registry.needed_checkpoints(registry.model("full"))


def test_an_adapter_cannot_be_gone_on_with_by_full_training(registry, folder):
    registry.add(str(folder), "lora", config=ModelConfig(training="lora"))
    train_a_step(registry, "lora", lora=True)
    with pytest.raises(UsageError, match="hud models export lora"):
        registry.fork("lora", "full", config=ModelConfig(training="full"))


def test_a_model_is_not_removed_while_a_fork_needs_its_files(registry, folder):
    registry.add(str(folder), "base-model")
    node = train_a_step(registry, "base-model")
    registry.fork("base-model", "fork")
    with pytest.raises(ConflictError, match="'fork' began with its files"):
        registry.remove("base-model")
    assert node.folder.is_dir()
    registry.remove("fork")
    registry.remove("base-model")
    assert registry.models() == []
    assert not node.folder.exists()
    assert (folder / "model.safetensors").exists(), "a folder that was added belongs to its owner"


def test_the_head_moves_along_branches(registry, folder):
    model = registry.add(str(folder), "m")
    first, second = train_a_step(registry, "m", 1), train_a_step(registry, "m", 2)
    registry.tree.set_head(model, first.id)
    branch = train_a_step(registry, "m", 2)
    assert (second.parent_id, branch.parent_id) == (first.id, first.id)
    assert registry.model("m").head_checkpoint_id == branch.id
    registry.tree.set_head(model, None)
    assert registry.model("m").head_checkpoint_id is None


def test_a_checkpoint_is_found_by_prefix_name_and_word(registry, folder):
    registry.add(str(folder), "m")
    node = train_a_step(registry, "m", 1)
    model = registry.model("m")
    for reference in (node.id, dashed(node.id), node.id[:8], node.name, "step-1", "head"):
        assert registry.tree.find(model, reference) == node.id
    assert registry.tree.find(model, "base") is None
    with pytest.raises(NotFoundError, match="did you mean"):
        registry.tree.find(model, "step-7")


def test_a_step_is_not_kept_when_the_head_moved_meanwhile(registry, folder):
    model = registry.add(str(folder), "m")
    node = train_a_step(registry, "m", 1)
    other = CheckpointRecord(
        id=new_id(), model_id=model.id, parent_id=None, step=1, name="late", folder=node.folder,
        created_at=datetime.now(UTC),
    )  # fmt: skip
    with pytest.raises(ConflictError, match="head was moved"):
        registry.tree.append(other, expected_head=None)
    assert [n.id for n in registry.tree.nodes(model)] == [node.id]


@pytest.mark.parametrize("file", ["sampler/model.safetensors", "state.safetensors"])
def test_a_damaged_file_is_named_with_the_cure(registry, folder, file):
    model = registry.add(str(folder), "m")
    first, second = train_a_step(registry, "m", 1), train_a_step(registry, "m", 2)
    (second.folder / file).write_bytes(b"something else")
    with pytest.raises(StoreError, match=file) as told:
        registry.tree.verify(second, model)
    assert f"hud models head m --set {first.name}" in str(told.value)
    # One whose files were deleted is no cure.
    registry.tree.prune(model, {second.id})
    assert registry.tree.cure(second, model).endswith("hud models head m --set base")


def test_half_written_checkpoints_are_cleaned(registry, folder):
    model = registry.add(str(folder), "m")
    node = train_a_step(registry, "m", 1)
    place = registry.tree.place(model.id)
    (place / ".writing-step-2-abcdef" / "sampler").mkdir(parents=True)
    (place / "step-2-fedcba").mkdir()  # renamed, but its row was never written
    registry.tree.clean(model)
    assert [path.name for path in place.iterdir()] == [node.name]


def test_pruning_keeps_nodes_heads_and_what_forks_need(registry, folder):
    model = registry.add(str(folder), "m")
    nodes = [train_a_step(registry, "m", 1)]
    registry.fork("m", "fork")
    nodes += [train_a_step(registry, "m", step) for step in (2, 3, 4)]
    keep = registry.needed_checkpoints(registry.model("m"))
    registry.tree.prune(model, keep)
    left = {node.step: node.folder is not None for node in registry.tree.nodes(model)}
    assert left == {1: True, 2: False, 3: False, 4: True}
    with pytest.raises(ConflictError, match="deleted to save space"):
        registry.tree.set_head(model, nodes[1].id)


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(tmp_path):
    target = tmp_path / "checkpoints" / "step-1"

    def write(path):
        (path / "half").write_bytes(b"x")
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match="disk is full"):
        write_checkpoint(target, Manifest(id="a", model_id="b", step=1), write)
    assert list(target.parent.iterdir()) == []


def test_the_format_of_tool_calls_is_a_setting_that_forks_take_over(registry, folder):
    config = ModelConfig(tool_call_parser="gpt-oss")
    assert registry.add(str(folder), "base", config=config).config.tool_call_parser == "openai"
    assert registry.fork("base", "as-it-is").config.tool_call_parser == "openai"
    registry.add(str(folder), "adapted", config=ModelConfig(training="lora", lora_rank=4))
    other = ModelConfig(tool_call_parser="hermes")
    assert registry.fork("adapted", "adapted-too", config=other).config.lora_rank == 4
    assert registry.fork("base", "another", config=other).config.tool_call_parser == "hermes"
    with pytest.raises(ValueError, match="no tool-call parser 'curl'; there are openai"):
        ModelConfig(tool_call_parser="curl")
