"""Every code block of the README and of the documentation runs as it is written, and prints what the page shows."""

from __future__ import annotations

import contextlib
import shutil

import pytest
from tests.agents.servers.anthropic import KEY as CLAUDE_KEY
from tests.agents.servers.anthropic import AnthropicMessages
from tests.agents.servers.anthropic import say as claude_says
from tests.agents.servers.loopback import beside
from tests.agents.servers.openai_chat import KEY as CHAT_KEY
from tests.agents.servers.openai_chat import OpenAIChat
from tests.agents.servers.openai_chat import say as chat_says
from tests.agents.servers.openai_responses import KEY, OpenAIResponses
from tests.agents.servers.openai_responses import say as openai_says
from tests.docs.blocks import INTEGRATIONS, ROOT, blocks_of, matches, name_of, pages
from tests.docs.scenes import SCENES
from tests.docs.stage import Scene, Stage
from tests.warm_hud import WarmHud

from hud.cli.main import run as run_hud
from hud.client import disconnect

SLOW = [
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            "agent-programs",
            "agents",
            "audit",
            "benchmarks",
            "chat-formats",
            "coding-agents",
            "dashboard",
            "deployment",
            "extending",
            "first-policy",
            "fleet",
            "gateway",
            "guard",
            "hierarchies",
            "importing",
            "incident-lab",
            "mcp",
            "one-gpu",
            "outcomes",
            "platform",
            "preferences",
            "promotion",
            "review",
            "rewards",
            "scaling",
            "supervised",
            "training",
            "vllm",
        )
    ),
]
"""Pages that train several times, or start many servers."""
PAGES = {name_of(page): blocks_of(page.read_text(), name_of(page)) for page in pages()}
BLOCKS = [block for blocks in PAGES.values() for block in blocks]


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    with WarmHud(tmp_path_factory.mktemp("warm")) as hud:
        yield hud


@pytest.fixture(scope="module")
def providers():
    """OpenAI, Anthropic and a server of chat completions on loopback, which always give the same answer."""
    with contextlib.ExitStack() as stack:
        yield {
            "OPENAI_BASE_URL": stack.enter_context(
                beside(_endless(OpenAIResponses, [openai_says("a door")]))
            ).url
            + "/v1",
            "ANTHROPIC_BASE_URL": stack.enter_context(
                beside(_endless(AnthropicMessages, [claude_says("a door")]))
            ).url,
            "CHAT_URL": stack.enter_context(beside(_endless(Keyless, chat_says("a door")))).url,
        }


class Keyless(OpenAIChat):
    """A server of one's own, which knows no keys."""

    async def handle(self, request):
        key = {"authorization": f"Bearer {CHAT_KEY}"}
        return await super().handle(request.clone(headers={**request.headers, **key}))


class Forever(list):
    """A script of one turn, which is never over, however many ask at once."""

    def pop(self, index=-1):
        return self[index]


def _endless(kind, turn):
    server = kind()
    server.script = Forever([turn])
    return server


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    """A Hugging Face folder that stands for the reader's own model."""
    from hud.engine.tiny_model import create_tiny

    folder = tmp_path_factory.mktemp("model")
    texts = [
        f"Say {n}, and where the door is. look around: a door, count letters" for n in range(99)
    ]
    create_tiny(folder, texts, vocab_size=300, hidden=32, layers=1, max_context=512)
    return folder


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, blocks in PAGES.items()
        if blocks
    ],
)
async def test_every_block_of_the_page_runs(
    page, warm, providers, small_model, tmp_path, monkeypatch
):
    scene = SCENES.get(page, Scene())
    if scene.needs and shutil.which(scene.needs) is None:
        pytest.skip(f"there is no {scene.needs} here: scripts/setup-worlds")
    home = tmp_path / "home"
    variables = {
        **providers,
        "HUD_HOME": str(home),
        "MODEL_FOLDER": str(small_model),
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_API_KEY": CLAUDE_KEY,
    }
    for name in ("HUD_API_URL", "HUD_GATEWAY_URL", "HUD_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stage = Stage(tmp_path, scene, warm.program, variables)
    monkeypatch.chdir(stage.here)
    for slug in scene.models:
        assert run_hud(["models", "add", str(small_model), "--name", slug, "--json"]) == 0
    disconnect(home)
    try:
        await stage.begin(page)
        for block in PAGES[page]:
            await stage.run(block)
        await stage.check(page)
    finally:
        stage.closing.close()
        disconnect(home)


def test_pages_of_integrations_run_where_their_package_is():
    for page in INTEGRATIONS.glob("*.md"):
        assert (ROOT / "scripts" / "integrations" / f"{page.stem}.txt").exists()
        test = ROOT / "tests" / "integrations" / page.stem / f"test_{page.stem}_page.py"
        assert "run_page" in test.read_text()


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.file], ids=lambda block: block.place)
def test_every_file_of_a_page_is_used_by_a_later_block(block):
    """But those that go where the product itself looks."""
    later = [other for other in PAGES[block.page] if other.line > block.line]
    folder = block.file.partition("/")[0]
    used = any(
        block.file.removesuffix(".py") in other.text or f"install ./{folder}\n" in other.text
        for other in later
    )
    assert used or block.file.startswith("$HUD_HOME/")


def test_every_block_of_code_runs():
    reasons = {block.not_run for block in BLOCKS if block.not_run is not None}
    assert reasons == {
        "a program of another vendor",
        "settings of a program of another vendor",
        "a diagram of the loop",
        "npm fetches the inspector",
        "needs the weights of a model",
        "needs an image",
        "needs a mirror of Debian",
        "it loads a data set from the hub",
        "a job of the policy's own may have no reward",
    }
    assert len(BLOCKS) > 50


def test_shown_output_is_compared():
    assert matches(
        "mean reward  1.000  ...\nJob ...", "mean reward 1.000 [0.9, 1.0]\nruns 3\nJob 12ab"
    )
    assert not matches("mean reward  1.000", "mean reward 0.900")


def test_marks_are_read():
    page = "text\n\n<!-- file env.py -->\n```python\nx = 1\n```\n\n<!-- not run: a diagram of the loop -->\n\n    a -> b\n"
    page += "\n```sh\necho hello\n```\n\n```text\nhello\n```\n"
    page += "\n<!-- not run: needs an image -->\n\n```python\nx = 2\n```\n"
    one, two, three, four = blocks_of(page, "page.md")
    assert (one.file, one.line, one.language) == ("env.py", 5, "python")
    assert (two.not_run, two.language) == ("a diagram of the loop", "sh")
    assert (three.text, three.output) == ("echo hello\n", "hello\n")
    assert four.not_run == "needs an image"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("```sh\nfalse\n```", "page.md:2 ends with 1"),
        ("```sh\necho 1\n```\n```text\n2\n```", "page.md:2 shows\n2"),
        ("```console\n$ echo 1\n2\n```", "page.md:2 shows\n2"),
        ("text\n```python\nx = 1\n1 / 0\n```", "page.md:3 fails: ZeroDivisionError"),
        ("```python\nprint(1)\n```\n```text\n2\n```", "page.md:2 shows\n2"),
        ("```rust\nfn\n```", "page.md:2: nothing runs 'rust'"),
        ("```toml\na = 1\n```", "page.md:2: nothing runs 'toml'"),
        ("```sh\nhud nope\n```", "page.md:2 ends with 2"),
    ],
)
async def test_what_does_not_run_is_found(text, told, warm, tmp_path):
    stage = Stage(tmp_path, Scene(), warm.program, {"HUD_HOME": str(tmp_path / "home")})
    with pytest.raises(AssertionError) as failed:
        for block in blocks_of(text, "page.md"):
            await stage.run(block)
    assert told in str(failed.value)
