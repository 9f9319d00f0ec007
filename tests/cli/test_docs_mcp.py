"""`hud docs-mcp`: the official client searches and reads the documentation, as this checkout has it."""

import re
import sys
from pathlib import Path

import pytest
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters, stdio_client

from hud.errors import NotFoundError, UsageError
from hud_dashboard.documentation import Library, Page, read_pages
from hud_dashboard.documentation.served import DocumentationServer

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def library():
    return Library(read_pages())


def text(result):
    return "".join(block.text for block in result.content)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_searches_and_reads(tmp_path, mode):
    program = StdioServerParameters(
        command=sys.executable, args=["-m", "hud.cli.main", "docs-mcp"], cwd=tmp_path
    )
    async with Client(stdio_client(program), mode=mode) as client:
        search, read = (await client.list_tools()).tools
        assert (search.name, read.name) == ("search", "read")
        assert search.input_schema["required"] == ["query"]
        assert "training" in read.description

        found = await client.call_tool("search", {"query": "how are advantages of groups made?"})
        best = found.structured_content["results"][0]
        assert (best["page"], best["heading"]) == ("training", "Groups and advantages")
        assert best["excerpt"] in text(found)
        section = await client.call_tool("read", {"page": best["page"], "section": best["heading"]})
        assert text(section).startswith("## Groups and advantages\n")
        whole = await client.call_tool("read", {"page": "training"})
        assert text(whole) == (DOCS / "training.md").read_text()

        for name, arguments, sentence in [
            ("read", {"page": "trainin"}, "The documentation has no page 'trainin'; did you mean "),
            ("read", {"page": "training", "section": "Checkpionts"}, "did you mean 'checkpoints'"),
            ("read", {}, "The arguments of 'read' do not fit: page: Field required."),
            ("search", {"query": "?!"}, "There are no words to search for in '?!'."),
            ("search", {"query": "head", "limit": 0}, "limit: Input should be greater"),
        ]:
            refused = await client.call_tool(name, arguments)
            assert refused.is_error
            assert sentence in text(refused)
        nothing = await client.call_tool("search", {"query": "xylophone"})
        assert not nothing.is_error
        assert nothing.structured_content == {"results": []}
        assert "has no match for 'xylophone'" in text(nothing)


async def test_a_prompt_leads_through_the_whole_pipeline(library):
    async with Client(DocumentationServer(library)._server) as client:
        (prompt,) = (await client.list_prompts()).prompts
        assert (prompt.name, [one.name for one in prompt.arguments]) == ("train_an_agent", ["goal"])
        guide = await client.get_prompt("train_an_agent", {"goal": "refund orders"})
        said = guide.messages[0].content.text
        assert "My goal: refund orders" in said
        assert library.read("coding-agents") in said
        asked = (await client.get_prompt("train_an_agent")).messages[0].content.text
        assert "Ask me first what the agent shall learn" in asked
        for name, arguments in [("train", {}), ("train_an_agent", {"model": "x"})]:
            with pytest.raises(MCPError, match="There is one prompt, 'train_an_agent'"):
                await client.get_prompt(name, arguments)


def test_the_guide_of_the_prompt_leads_to_pages_and_sections_that_can_be_read(library):
    links = re.findall(r"\]\(([\w/-]+)\.md(?:#([^)]+))?\)", library.read("coding-agents"))
    assert len(links) > 6
    for page, section in links:
        assert library.read(page, section)


def test_every_page_is_there_whole_and_the_overview_comes_first(library):
    written = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert set(library.pages) == {"readme", *written}
    assert next(iter(library.pages)) == "readme"
    for name in written:
        if not name.startswith("reference/"):
            assert library.read(name) == (DOCS / f"{name}.md").read_text()
    job = library.read("reference/hud", "Job")
    assert "### Job.start" in job
    assert ":::" not in job


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("env.connect_mcp prefix", "mcp"),
        ("hud docs-mcp", "mcp"),
        ("which losses are there", "losses"),
        ('resume an evaluation "stopped" (AND', "evaluation"),
        ("keys and scopes: who may do what", "platform"),
        ("AgentTool from_task", "hierarchies"),
        ("compute_advantages", "reference/train"),
        ("hud models discard", "commands/models"),
    ],
)
def test_what_is_looked_for_is_found(library, query, page):
    assert library.search(query, 3)[0].page == page


@pytest.mark.slow
def test_every_section_is_found_by_its_own_heading_and_can_be_read(library):
    for page in library.pages.values():
        for section in page.sections:
            assert section.text in library.read(page.name, section.heading) or any(
                other is not section and other.heading == section.heading for other in page.sections
            )
            generated = page.name.startswith(("commands", "reference/"))
            if generated or section.heading in library.pages:  # Found by another page, too.
                continue
            found = library.search(f"{page.title} {section.heading}")
            assert (page.name, section.heading) in {(each.page, each.heading) for each in found}


@pytest.mark.parametrize("name", ["training", "Training.md", "docs/training.md", " docs/training "])
def test_a_page_is_known_by_the_ways_in_which_links_write_it(library, name):
    assert library.read(name, "groups-and-advantages").startswith("## Groups and advantages\n")


def test_a_section_holds_those_below_it_and_code_has_no_headings(tmp_path):
    (tmp_path / "docs_pages").mkdir()
    written = "# Page\n\nFirst.\n\n## One\n\n```sh\n# no heading\n```\n\n### Inner\n\nDeep.\n\n## Two\n\nLast.\n"
    (tmp_path / "docs_pages" / "page.md").write_text(written)
    library = Library(read_pages(tmp_path))
    page: Page = library.pages["page"]
    assert [section.heading for section in page.sections] == ["Page", "One", "Inner", "Two"]
    assert library.read("page") == written
    assert library.read("page", "one") == written[written.index("## One") : written.index("## Two")]
    with pytest.raises(NotFoundError, match=re.escape("has no section 'no heading'")):
        library.read("page", "no heading")
    with pytest.raises(UsageError, match="no words"):
        library.search("")


def test_an_installation_without_pages_says_so(tmp_path):
    with pytest.raises(NotFoundError, match="holds no documentation; install openhud again"):
        read_pages(tmp_path)
