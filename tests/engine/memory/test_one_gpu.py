"""The memory plan of a trainer and a sampler on one GPU: counted parameters, and what each option takes off."""

import pytest
from tests.engine.picture_folders import write_folder

from hud.engine.config import DecoderConfig
from hud.engine.memory.model_shapes import GIB, MACHINES
from hud.engine.memory.one_gpu import shape_of, shared_gpu
from hud.engine.memory.tower import tower_of
from hud.errors import UsageError

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
SMALL = DecoderConfig.from_dict(
    {
        **QWEN3,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    }
)
MIDDLE = DecoderConfig.from_dict(
    {
        **QWEN3,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    }
)
SETTINGS = {
    "training": "full",
    "lora_rank": 16,
    "dtype": "bfloat16",
    "optimizer_states": "float32",
    "offload_optimizer": False,
    "recompute_layers": True,
}


def planned(config=MIDDLE, *, longest=1, tower=None, **settings):
    settings = {**SETTINGS, **settings}
    return shared_gpu(config, settings, MACHINES["H100"], longest=longest, tower=tower)


@pytest.mark.parametrize(("config", "parameters"), [(SMALL, 596_049_920), (MIDDLE, 4_022_468_096)])
def test_the_parameters_are_those_of_the_published_models(config, parameters):
    assert shape_of(config).parameters == parameters
    plan = planned(config)
    assert plan.trainer.weights == 2 * parameters
    assert plan.trainer.gradients == 6 * parameters
    assert plan.trainer.optimizer == 12 * parameters
    # 2 (keys, values) x layers x 8 heads x 128 x 2 bytes a token, in whole pages of what the rest leaves.
    page = 2 * config.num_hidden_layers * 8 * 128 * 2 * 64
    room = max(72 * GIB - plan.trainer.total - plan.logits, 2 * GIB)
    assert plan.cache == room // page * page
    assert plan.cached_tokens == (room // page - 1) * 64


def test_a_user_s_cache_is_planned_as_it_is_set():
    plan = planned(SMALL, cache_bytes=4 * GIB, slots=16, max_context=2048)
    assert (plan.cached_tokens, plan.slots) == (16 * 2048, 16)
    with pytest.raises(UsageError, match="One conversation of 40,960 tokens needs"):
        planned(SMALL, cache_bytes=GIB, max_context=40_960)


def test_a_small_model_fits_whole_and_a_middle_one_with_8_bit_moments_or_lora():
    assert 0 <= planned(SMALL).left < GIB  # The cache takes the rest.
    whole = planned()
    assert whole.left == pytest.approx(72 * GIB - whole.trainer.total - whole.logits - whole.cache)
    assert whole.left < 0
    assert planned(optimizer_states="8bit").trainer.optimizer == 6 * whole.parameters
    assert planned(optimizer_states="8bit").cache > 2 * GIB
    assert planned(offload_optimizer=True, optimizer_states="8bit").trainer.optimizer == 0
    assert planned(training="lora").cache > planned(offload_optimizer=True).cache


def test_weights_in_fp32_are_their_own_master_and_sum():
    plan = planned(SMALL, dtype="float32")
    assert plan.trainer.weights == plan.trainer.gradients == 4 * plan.parameters
    assert plan.trainer.optimizer == 8 * plan.parameters
    assert planned(SMALL, dtype="float32", offload_optimizer=True).trainer.optimizer == 0


@pytest.mark.slow
def test_layers_that_are_not_recomputed_are_all_kept():
    kept, recomputed = planned(recompute_layers=False), planned()
    assert kept.trainer.activations > 10 * recomputed.trainer.activations
    assert planned(longest=8192).trainer.activations == 2 * recomputed.trainer.activations
    # No run is longer than the model's context.
    assert planned(longest=10**6).tokens == MIDDLE.max_position_embeddings


def test_remedies_are_options_that_are_not_in_use():
    assert planned(recompute_layers=False).remedies[:4] == [
        "--recompute-layers",
        "--optimizer-states 8bit",
        "--offload-optimizer",
        "--lora-rank 16",
    ]
    assert len(planned(training="lora").remedies) == 1


def test_servers_that_sample_have_the_cache():
    assert planned(servers={"kind": "vllm", "urls": ["http://gpu:8000"]}).cache == 0


def test_other_families_are_not_planned():
    other = DecoderConfig("gpt2", 100, 8, 8, 1, 1, 1, 8)
    with pytest.raises(UsageError, match="gpt2 models is not planned"):
        planned(other)


def test_a_vision_tower_adds_weights_activations_and_pixels(tmp_path):
    model = write_folder(tmp_path, "qwen3_vl")
    config, tower = DecoderConfig.from_folder(tmp_path), tower_of(tmp_path)
    assert tower.parameters == sum(weight.numel() for weight in model.model.visual.parameters())
    total = sum(weight.numel() for weight in model.parameters())
    assert (tower.layers, tower.hidden, tower.patches_per_token) == (2, 32, 4)
    assert tower.patch_values == 3 * 2 * 4 * 4  # Channels, frames, and the patch's sides.
    whole = planned(config, tower=tower)
    assert (whole.parameters, whole.tower_parameters) == (total, tower.parameters)
    assert whole.trainer.weights == 2 * total
    assert whole.pixels == whole.tokens * 4 * 96 * (4 + 2)
    patches = 2 * whole.tokens * 4
    assert whole.tower == patches * (2 * 32 + 8 * 32 + 2 * 48)
    frozen, adapted = (
        planned(config, tower=tower, training="lora", lora_tower=trained)
        for trained in (False, True)
    )
    assert frozen.tower == patches * (8 * 32 + 2 * 48)
    assert adapted.tower == whole.tower
    assert adapted.trainer.optimizer > frozen.trainer.optimizer


@pytest.mark.parametrize(("kind", "patches"), [("qwen3_5", 4), ("idefics3", 4), ("gemma3", 4)])
def test_towers_of_other_classes_are_counted(tmp_path, kind, patches):
    model = write_folder(tmp_path, kind)
    tower = tower_of(tmp_path)
    total = sum(weight.numel() for weight in model.parameters())
    assert tower.parameters + tower.text_parameters == total
    assert tower.patches_per_token == patches
