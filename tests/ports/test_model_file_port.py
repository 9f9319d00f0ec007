"""The port `ModelFileFormat`: formats of model files that join by an entry point."""

import shutil

import pytest
from tests.engine.tiny_policy import tiny_folder

from hud.engine.model_files.formats import format_of, model_file_formats
from hud.errors import NotFoundError
from hud_platform.models.registry import Registry
from hud_platform.store import Store
from hud_platform.store.tables import LOCAL_TEAM

CRATE = """
import zipfile

from hud.engine.model_files.formats import ModelFileFormat


class CrateFormat(ModelFileFormat):
    suffix = ".crate"

    def reads(self, path):
        return path.suffix == self.suffix

    def convert(self, path, folder, *, dtype=None):
        zipfile.ZipFile(path).extractall(folder)


plug = CrateFormat()
"""


@pytest.fixture
def registry(tmp_path):
    store = Store.open(tmp_path / "home")
    yield Registry(store, tmp_path / "home", team=LOCAL_TEAM)
    store.close()


def test_a_stranger_s_format_is_added_as_the_folder_that_it_writes(tmp_path, stranger, registry):
    stranger("hud.model_files", "crate", CRATE)
    packed = shutil.make_archive(str(tmp_path / "small"), "zip", tiny_folder())
    crate = tmp_path / "small.crate"
    shutil.move(packed, crate)
    model = registry.add(str(crate), "small")
    assert (model.folder / "model.safetensors").is_file()
    assert model.config.source == str(crate)
    with pytest.raises(NotFoundError, match=r"no file '.*missing\.crate'"):
        registry.add(str(tmp_path / "missing.crate"), "other")


def test_the_formats_of_this_distribution_tell_their_files_from_others(tmp_path):
    assert [form.suffix for form in model_file_formats()] == [".gguf"]
    for content, name, reads in [
        (b"GGUF\x03", "weights.bin", True),
        (b"", "empty.gguf", True),
        (b"PK", "weights.zip", False),
    ]:
        (tmp_path / name).write_bytes(content)
        assert (format_of(tmp_path / name) is not None) is reads
    assert format_of(tmp_path) is None
    assert format_of(tmp_path / "missing.gguf") is None
