"""Chat formats are those of a folder's files now, whatever lay at its path before."""

import json
import os
import shutil

from tests.engine.tiny_policy import tiny_folder

from hud_platform.gateway.chat_formats import format_of


def test_files_that_were_replaced_are_read_again(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder(), folder)
    talk = [{"role": "user", "content": "hi"}]
    first = format_of(folder)
    assert format_of(folder) is first
    template = folder / "chat_template.jinja"
    times, text = template.stat(), template.read_text()
    replaced = text.replace("<|user|>", "<|tool|>")
    assert len(replaced) == len(text)
    assert replaced != text
    template.write_text(replaced)
    os.utime(template, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert format_of(folder).chat.render_text(talk, []) != first.chat.render_text(talk, [])
    template.write_text(text)
    assert format_of(folder) is first
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 77}))
    assert format_of(folder).context == 77
