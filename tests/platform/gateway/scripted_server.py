"""`hud up`'s application with a local model whose turns come from a script: prompts, parsing and streams are the product's."""

import contextlib
import json
import shutil
from dataclasses import dataclass, field

from tests.engine.template_folders import template_folder
from tests.platform.gateway.gateway_server import serving

from hud.trace import call_message
from hud_platform.application import create_app
from hud_platform.gateway.chat_formats import format_of
from hud_platform.process.config import PlatformConfig
from hud_platform.serving.token_engine import TokenDelta, TokenEnd
from hud_platform.store.tables import LOCAL_TEAM

MODEL = "scripted"
CONTEXT = 1 << 20


@dataclass
class ScriptedTurn:
    """A turn of the model: a thought, and a call or a text."""

    thought: str = ""
    text: str = ""
    tool: str = ""
    arguments: dict = field(default_factory=dict)

    def message(self, place):
        message = {"role": "assistant", "content": self.text}
        if self.thought:
            message["reasoning_content"] = self.thought
        if self.tool:
            call = call_message(f"abcdefgh{place}", self.tool, json.dumps(self.arguments))
            message["tool_calls"] = [call]
        return message


class ScriptedModel:
    """A token engine that samples the turns of a script; prompts without the script's mark are side calls and get a title."""

    up, streams = True, 0

    def __init__(self, chat, turns, mark):
        self.chat = chat
        self.turns = turns
        self.mark = mark
        self.prompts = []
        """Prompt and output ids of the script's calls."""
        self.side_calls = []

    def _turn(self, prompt):
        """Return the ids that the template writes for the next turn."""
        text = self.chat.decode(prompt)
        if self.mark not in text:
            self.side_calls.append(text)
            turn = ScriptedTurn(text="A title")
        else:
            turn = self.turns[min(len(self.prompts), len(self.turns) - 1)]
        before = [{"role": "user", "content": "?"}]
        begun = self.chat.render_text(before, [])
        message = turn.message(len(self.prompts))
        whole = self.chat.render_text([*before, message], [], generation=False)
        assert whole.startswith(begun)
        ids = self.chat.encode_rendered(whole[len(begun) : self.chat.turn_end(whole)[1]])
        if self.mark in text:
            self.prompts.append((list(prompt), ids))
        return ids

    async def stream(self, model, checkpoint, request):
        ids = self._turn(request.prompt)
        for start in range(0, len(ids), 16):
            part = ids[start : start + 16]
            yield TokenDelta(part, [-0.5] * len(part), None, 1, "c" * 32)
        yield TokenEnd("stop", 1, "c" * 32)

    def extended(self):
        """Return how many calls' prompts begin with the ids of the call before, and how many could."""
        pairs = list(zip(self.prompts, self.prompts[1:], strict=False))
        held = sum(
            later[: len(prompt + ids)] == prompt + ids for (prompt, ids), (later, _) in pairs
        )
        return held, len(pairs)


@contextlib.contextmanager
def scripted_server(home, turns, mark, template="qwen3.5"):
    """Serve a platform with the model `scripted`; yields its URL and the model."""
    app = create_app(PlatformConfig(home))
    sizes = {"vocab_size": 300, "hidden": 16, "layers": 1, "max_context": CONTEXT}
    registry = app.state.parts.registry.of(LOCAL_TEAM)
    models = [model for model in registry.models() if model.slug == MODEL]
    record = models[0] if models else registry.create(MODEL, ["a"], sizes=sizes)
    folder = template_folder(template)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(folder / name, record.folder / name)
    ends = json.loads((folder / "config.json").read_text())["eos_token_id"]
    config = json.loads((record.folder / "config.json").read_text())
    (record.folder / "config.json").write_text(json.dumps({**config, "eos_token_id": ends}))
    model = ScriptedModel(format_of(record.folder).chat, turns, mark)
    app.state.parts.__dict__["engine"] = model
    try:
        with serving(app) as url:
            yield url, model
    finally:
        app.state.parts.close()
