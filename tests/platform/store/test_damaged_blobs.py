"""A blob with other bytes than base64: its step is shown without it."""

import pytest

from hud_platform.store.attachments import attach, store_attachment
from hud_platform.store.blobs import Blobs

TEAM = "a" * 32


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_step_with_a_damaged_attachment_is_shown_without_it(tmp_path, damage):
    blobs = Blobs(str(tmp_path))
    name = store_attachment(blobs, TEAM, "QUJD")
    if damage == "missing":
        blobs.delete(name)
    else:
        blobs.put(name, b"\xff\x00{[")
    step = {"content": [{"type": "image", "hud.blob": name}]}
    assert attach(blobs, TEAM, step) == 0
    assert step["content"] == [{"type": "image", "data": ""}]
