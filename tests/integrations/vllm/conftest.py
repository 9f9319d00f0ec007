"""Two real vLLM servers for the tests `test_real_*`, and the pretrained model that they serve."""

import pytest
from tests.integrations.vllm.real_vllm import VllmProcess, float32_folder
from tests.pretrained_model import NAME


@pytest.fixture(scope="session")
def pretrained_folder(pretrained_home):
    """The folder of SmolLM2-135M-Instruct, as `hud models add` made it: tied embeddings, bf16."""
    from hud.client import connect, disconnect

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUD_HOME", str(pretrained_home))
        folder = connect().embedded.parts.registry.model(NAME).folder
        disconnect(pretrained_home)
    return folder


@pytest.fixture(scope="session")
def untied_folder(pretrained_folder, tmp_path_factory):
    """The model in float32, with a vocabulary projection of its own."""
    return float32_folder(
        pretrained_folder, tmp_path_factory.mktemp("untied") / "model", tied=False
    )


@pytest.fixture(scope="session")
def tied_folder(pretrained_folder, tmp_path_factory):
    """The model in float32, with tied embeddings."""
    return float32_folder(pretrained_folder, tmp_path_factory.mktemp("tied") / "model", tied=True)


@pytest.fixture(scope="session")
def processes(untied_folder, tied_folder, tmp_path_factory):
    """Servers of the untied model and of the tied one. Until a step with all weights both compute the same."""
    logs = tmp_path_factory.mktemp("vllm")
    started = [
        VllmProcess(folder, logs / f"{name}.log")
        for name, folder in (("untied", untied_folder), ("tied", tied_folder))
    ]
    try:
        for process in started:
            process.start()
        yield started
    finally:
        for process in started:
            process.kill()


@pytest.fixture
def server(processes):
    """The server of the untied model."""
    processes[0].wait()
    return processes[0]


@pytest.fixture
def tied_server(processes):
    """The server of the tied model."""
    processes[1].wait()
    return processes[1]
