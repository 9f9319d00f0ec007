"""Listings, downloads, keys and retries of Tinker's client on `hud up`: `scripts/setup-integration tinker`."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytest.importorskip("tinker", reason="scripts/setup-integration tinker")

import tinker
from safetensors import safe_open
from tests.integrations.tinker.server import started
from tinker import types

pytestmark = pytest.mark.timeout(300)
DATUM = types.Datum(
    model_input=types.ModelInput.from_ints([7, 8, 9]),
    loss_fn_inputs={"target_tokens": [8, 9, 10], "weights": [1.0, 1.0, 1.0]},
)


@pytest.fixture
def service(server):
    made = tinker.ServiceClient(
        {"who": "tests"}, base_url=server.url, api_key=f"tml-{server.key}", display_name="tests"
    )
    yield made
    made.close("success").result()


@pytest.fixture(scope="module")
def rest(server):
    return tinker.RestClient(base_url=server.url, api_key=f"tml-{server.key}")


def stepped(client):
    client.forward_backward([DATUM], "cross_entropy")
    client.optim_step(types.AdamParams(learning_rate=1e-2)).result()


def test_capabilities_and_the_models_information(service, rest):
    models = rest.get_server_capabilities().result().supported_models
    (found,) = [one for one in models if one.model_name == "m"]
    assert found.max_context_length == 512
    assert found.trainable
    assert found.sampleable
    client = service.create_lora_training_client("m", rank=4, user_metadata={"try": "1"}).result()
    info = client.get_info()
    assert (info.is_lora, info.lora_rank, info.model_data.model_name) == (True, 4, "m")
    assert client.get_tokenizer().decode(client.get_tokenizer().encode("red green")) == "red green"
    run = rest.get_training_run(client.model_id).result()
    assert (run.base_model, run.is_lora, run.lora_rank) == ("m", True, 4)
    assert run.user_metadata == {"try": "1"}
    assert run.last_checkpoint is None


def test_saves_are_listed_named_expire_and_are_deleted(service, rest):
    client = service.create_lora_training_client("m", rank=4).result()
    stepped(client)
    one = client.save_state("one", user_metadata={"note": "first"}).result().path
    stepped(client)
    client.save_state("two", ttl_seconds=3600).result()
    client.save_weights_for_sampler("three").result()
    saves = {
        save.checkpoint_id: save
        for save in rest.list_checkpoints(client.model_id).result().checkpoints
    }
    assert list(saves) == ["weights/one", "weights/two", "sampler_weights/three"]
    assert saves["weights/one"].user_metadata == {"note": "first"}
    assert saves["weights/one"].expires_at is None
    assert saves["weights/two"].expires_at is not None
    assert all(save.size_bytes > 0 for save in saves.values())
    run = rest.get_training_run_by_tinker_path(one).result()
    assert run.last_checkpoint.checkpoint_id == "weights/two"
    assert run.last_sampler_checkpoint.checkpoint_id == "sampler_weights/three"
    every = rest.list_user_checkpoints().result()
    assert {save.tinker_path for save in saves.values()} <= {
        save.tinker_path for save in every.checkpoints
    }
    info = rest.get_weights_info_by_tinker_path(one).result()
    assert (info.base_model, info.lora_rank, info.train_mlp, info.train_unembed) == (
        "m",
        4,
        True,
        False,
    )

    stepped(client)
    with pytest.raises(tinker.RequestFailedError, match="weights/one exists; pass overwrite=True"):
        client.save_state("one").result()
    assert client.save_state("one", overwrite=True).result().path == one
    rest.set_checkpoint_ttl_from_tinker_path(one, 7200).result()
    rest.delete_checkpoint_from_tinker_path(f"tinker://{client.model_id}/weights/two").result()
    left = rest.list_checkpoints(client.model_id).result().checkpoints
    assert {save.checkpoint_id for save in left} == {"weights/one", "sampler_weights/three"}
    assert all(save.expires_at for save in left if save.checkpoint_id == "weights/one")
    with pytest.raises(tinker.NotFoundError, match="has no checkpoint 'weights/two'"):
        rest.delete_checkpoint_from_tinker_path(f"tinker://{client.model_id}/weights/two").result()


def test_sessions_name_their_runs_and_samplers(service, rest):
    client = service.create_lora_training_client("m", rank=4).result()
    session_id = client.model_id.partition(":")[0]
    service.create_sampling_client(base_model="m").result()
    session = rest.get_session(session_id).result()
    assert session.training_run_ids == [client.model_id]
    assert len(session.sampler_ids) == 1
    assert session.user_metadata == {"who": "tests"}
    assert session.display_name == "tests"
    assert session_id in rest.list_sessions().result().sessions
    assert rest.get_sampler(session.sampler_ids[0]).result().base_model == "m"


def test_what_was_trained_serves_through_the_gateway_and_shows_in_the_tree(server, service):
    client = service.create_lora_training_client("m", rank=4).result()
    stepped(client)
    client.save_state("shown").result()
    with server.client() as api:
        model = api.get("/v2/models/resolve", params={"model": client.model_id}).json()
        (node,) = api.get(f"/v2/models/{model['id']}/checkpoints").json()
        assert node["is_active"]
        assert (node["step"], node["loss_fn"], node["num_datums"]) == (1, "cross_entropy", 1)
        body = {
            "model": model["model_name"],
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 4,
        }
        assert api.post("/v1/chat/completions", json=body).status_code == 200
        page = api.get(f"/models/{model['model_name']}")
        assert page.status_code == 200


def test_the_command_of_tinker_downloads_an_adapter_and_whole_weights(server, service, tmp_path):
    adapter = service.create_lora_training_client("m", rank=4).result()
    stepped(adapter)
    whole = service.create_training_client_from_state("tinker://m/weights/base").result()
    stepped(whole)
    environment = {
        **os.environ,
        "TINKER_API_KEY": f"tml-{server.key}",
        "TINKER_BASE_URL": server.url,
    }
    command = Path(sys.executable).with_name("tinker")
    for client, file, name in (
        (adapter, "adapter_model.safetensors", "lora_A"),
        (whole, "model.safetensors", "mlp"),
    ):
        path = client.save_state("done").result().path
        run = [str(command), "checkpoint", "download", path, "-o", str(tmp_path)]
        done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        (found,) = tmp_path.rglob(file)
        with safe_open(found, "np") as tensors:
            names = tensors.keys()
        assert any(name in key for key in names)


def test_a_download_needs_its_signature(server, service, rest):
    client = service.create_lora_training_client("m", rank=4).result()
    path = client.save_weights_external("files").result().path
    urls = rest.get_external_weights_urls(path).result().urls
    url = urls["adapter_config.json"]
    assert httpx.get(url).status_code == 200
    assert httpx.get(url.replace("/downloads/", "/downloads/x")).status_code == 404
    climbed = url.replace("adapter_config.json", "..%2F..%2F..%2F..%2Fsigning.key")
    assert httpx.get(climbed).status_code == 404


def test_a_key_needs_the_scope_and_an_unknown_key_opens_nothing(server):
    with server.client() as api:
        made = api.post("/v2/keys", json={"name": "reader", "scopes": ["run"]}).json()
    secret = made.get("key") or made["secret"]
    service = tinker.ServiceClient(base_url=server.url, api_key=f"tml-{secret}")
    assert service.create_sampling_client(base_model="m").result()
    with pytest.raises(tinker.PermissionDeniedError, match="lacks the scope 'train'"):
        service.create_lora_training_client("m").result()
    service.close("success").result()
    with pytest.raises(tinker.AuthenticationError, match="unknown, expired or revoked"):
        tinker.ServiceClient(
            base_url=server.url, api_key="tml-hud_nonsense"
        ).create_sampling_client(base_model="m")


def test_a_restarted_server_says_how_to_go_on(tmp_path):
    server = started(tmp_path / "home")
    service = tinker.ServiceClient(base_url=server.url, api_key=f"tml-{server.key}")
    client = service.create_lora_training_client("m", rank=4).result()
    stepped(client)
    path = client.save_state("kept").result().path
    sampler = service.create_sampling_client(model_path=path).result()
    assert server.stop() == 0
    server.start()
    prompt, params = types.ModelInput.from_ints([7, 8]), types.SamplingParams(max_tokens=2)
    assert sampler.sample(prompt, 1, params).result().sequences
    with pytest.raises(tinker.NotFoundError, match="server was started again"):
        client.optim_step(types.AdamParams()).result()
    again = tinker.ServiceClient(base_url=server.url, api_key=f"tml-{server.key}")
    second = again.create_training_client_from_state_with_optimizer(path).result()
    stepped(second)
    again.close("success").result()
    assert server.stop() == 0
