"""Dockerfiles become images of workspaces: without a daemon, or by docker or podman."""

import re

import pytest
from tests.container_engines import require_engine
from tests.integrations.containers.image_layouts import (
    PROGRAMS,
    member,
    needs_bubblewrap,
    programs,
    workspace,
    write_layout,
)

from hud.errors import InfrastructureFault, UsageError
from hud_integrations.containers import add_image, build_image
from hud_integrations.containers.dockerfiles.dockerfile_build import build_without_daemon

DOCKERFILE = """
ARG BASE=box:1
FROM $BASE
ARG GREETING=hello
ENV WORD="$GREETING you" PATH=/bin:/usr/bin
WORKDIR /srv/app
COPY --chmod=644 names.txt extra/*.txt ./
COPY tree /srv/tree/
COPY --chown=1:1 names.txt renamed.txt
RUN echo "$WORD" > said.txt && \\
    rm /srv/tree/deep/gone && id -u > user.txt
SHELL ["/bin/sh", "-ec"]
RUN ["/bin/touch", "exec.txt"]
LABEL a=b
USER agent
RUN id -u >> user.txt; pwd >> user.txt
ENTRYPOINT ["/bin/cat"]
CMD said.txt
EXPOSE 80
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def context(tmp_path):
    """A build's folder, with a base named box:1."""
    accounts = b"root:x:0:0::/root:/bin/sh\nagent:x:7:7::/srv:/bin/sh\n"
    layer = [*programs([*PROGRAMS, "/bin/ln"]), member("etc"), member("etc/passwd", accounts)]
    add_image(write_layout(tmp_path / "box", [layer], {"Env": ["OLD=1"]}), "box:1")
    folder = tmp_path / "context"
    files = {
        "names.txt": "joe\n",
        "extra/a.txt": "a",
        "extra/b.md": "b",
        "tree/deep/gone": "1",
        "tree/deep/kept": "2",
        "tree/ignored.log": "3",
        ".dockerignore": "tree/*.log\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@needs_bubblewrap
def test_a_dockerfile_is_built_without_a_daemon_and_once(context, home, monkeypatch):
    (context / "Dockerfile").write_text(DOCKERFILE)
    built = build_image(context)
    app = built.root / "srv/app"
    assert sorted(path.name for path in app.iterdir()) == [
        *["a.txt", "exec.txt", "names.txt", "renamed.txt", "said.txt", "user.txt"]
    ]
    assert (app / "said.txt").read_text() == "hello you\n"
    assert (app / "user.txt").read_text() == "0\n7\n/srv/app\n"
    assert [path.name for path in (built.root / "srv/tree").iterdir()] == ["deep"]
    assert [path.name for path in (built.root / "srv/tree/deep").iterdir()] == ["kept"]
    assert (built.workdir, built.user) == ("/srv/app", 7)
    assert built.variables["WORD"] == "hello you"
    assert built.variables["OLD"] == "1"
    kept = len(list((home / "images").iterdir()))
    assert build_image(context) == built
    assert len(list((home / "images").iterdir())) == kept
    assert build_image(context, arguments={"GREETING": "bye"}).variables["WORD"] == "bye you"
    (context / "names.txt").write_text("ada\n")
    again = build_image(context)
    assert (again.root / "srv/app/names.txt").read_text() == "ada\n"
    assert (app / "names.txt").read_text() == "joe\n"


STAGES = """
ARG WORD=hello
FROM box:1 AS Tools
ARG WORD
RUN mkdir -p /out/deep && echo "$WORD" > /out/deep/word && ls -l /out > /dev/null
ENV KEPT=no
FROM missing:1 AS unused
RUN false
FROM tools AS more
RUN cat /out/deep/word /out/deep/word > /out/twice
FROM box:1
WORKDIR /app
COPY --from=more /out/ ./all/
COPY --from=0 --chmod=600 /out/deep/word one
COPY --from=box:1 /etc/passwd .
RUN cat all/twice one > sum
"""


@needs_bubblewrap
def test_stages_are_built_without_a_daemon_and_those_that_nothing_needs_are_not(context, home):
    (context / "Dockerfile").write_text(STAGES)
    built = build_without_daemon(context)
    app = built.root / "app"
    assert (app / "sum").read_text() == "hello\n" * 3
    assert (app / "one").stat().st_mode & 0o777 == 0o600
    assert (app / "passwd").read_text().startswith("root:")
    assert not (built.root / "out").exists()
    assert "KEPT" not in built.variables
    kept = len(list((home / "images").iterdir()))
    assert build_without_daemon(context) == built
    assert len(list((home / "images").iterdir())) == kept
    changed = build_without_daemon(
        context, STAGES.replace("/out/twice", "/out/thrice").replace("all/twice", "all/thrice")
    )
    assert (changed.root / "app/all/thrice").exists()


@needs_bubblewrap
def test_a_stage_s_links_lead_copies_to_no_file_of_the_machine(context, tmp_path):
    (tmp_path / "secret").write_text("sesame")
    for step in (
        f"echo > /a && rm /a && cat </dev/null > /b; ln -s {tmp_path}/secret /a",
        f"ln -s {tmp_path} /a",
    ):
        text = f"FROM box:1 AS first\nRUN {step}\nFROM box:1\nCOPY --from=first /a /b\n"
        with pytest.raises(UsageError, match="no such file in the image"):
            build_without_daemon(context, text)


@needs_bubblewrap
async def test_a_built_image_is_a_workspace(context):
    box = build_image(
        context, "FROM box:1\nWORKDIR /app\nCOPY names.txt .\nRUN cat names.txt > copy\n"
    )
    async with workspace(box) as (_, client):
        assert (await client.run("cat copy; echo 1 > names.txt; pwd")).stdout == "joe\n/app\n"


@needs_bubblewrap
def test_a_step_sees_neither_the_machine_nor_the_base_nor_a_network(context, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("sesame")
    base = build_image(context, "FROM box:1")
    step = f"cat {secret}; ls /sys; touch /bin/new; grep -E 'Cap|Seccomp:' /proc/self/status; cat /proc/net/dev"
    built = build_without_daemon(context, f"FROM box:1\nRUN ({step}) > /seen 2>&1; true\n")
    text = (built.root / "seen").read_text()
    assert "sesame" not in text
    assert set(re.findall(r"Cap(?:Eff|Bnd):\s*(\w+)", text)) == {"0" * 16}
    assert re.findall(r"Seccomp:\s*(\d)", text) == ["2"]
    assert re.findall(r"^\s*(\w+):\s*\d", text, re.MULTILINE)[-1:] == ["lo"]
    assert (built.root / "bin/new").exists() or (built.root / "usr/bin/new").exists()
    assert not (base.root / "bin/new").exists()


@needs_bubblewrap
def test_a_step_that_fails_is_named_and_nothing_remains(context, home):
    before = set((home / "images").iterdir())
    with pytest.raises(UsageError, match=r"RUN ls /missing ended with 2: .*No such file"):
        build_image(context, "FROM box:1\nRUN ls /missing\n")
    assert set((home / "images").iterdir()) == before


@needs_bubblewrap
def test_links_that_a_step_makes_lead_to_no_file_of_the_machine(context, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    layer = [*programs(), member("app", b"", type=b"2", linkname=str(outside))]
    add_image(write_layout(tmp_path / "linked", [layer]), "linked:1")
    build_image(
        context, "FROM linked:1\nCOPY names.txt /app/\nCOPY tree /app/tree\nWORKDIR /app/deep\n"
    )
    assert list(outside.iterdir()) == []


REFUSED = {
    "FROM missing:1": "FROM missing:1: there is no such image here",
    "FROM box:1 AS a\nFROM missing:2": "FROM missing:2: there is no such image here",
    "FROM b AS a\nFROM a AS b": "FROM b: there is no such image here",
    "RUN true\nFROM box:1": "RUN true",
    "FROM box:1 AS a\nFROM box:1\nCOPY --from=a /missing /y": "no such file in the image",
    "FROM box:1 AS a\nRUN rm -f /link; cat </dev/null >/x\nFROM box:1\nCOPY --from=a /../x /y": "leaves the image",
    "FROM box:1\nADD --from=box:1 /etc /y": "ADD --from",
    "FROM --platform=linux/arm64 box:1": "FROM --platform=linux/arm64",
    "FROM box:1\nVOLUME /data": "VOLUME /data is not supported",
    "FROM box:1\nHEALTHCHECK CMD true": "HEALTHCHECK CMD true is not supported",
    "FROM box:1\nONBUILD RUN true": "ONBUILD RUN true",
    "FROM box:1\nSTOPSIGNAL 9": "STOPSIGNAL 9",
    "FROM box:1\nRUN --mount=type=cache,target=/x true": "RUN --mount",
    "FROM box:1\nRUN <<EOF\ntrue\nEOF": "RUN <<EOF",
    "FROM box:1\nCOPY --from=a /x /y": "COPY --from=a",
    "FROM box:1\nADD https://example.org/x /y": "ADD https",
    "FROM box:1\nADD x.tar.gz /y": "ADD x.tar.gz",
    "FROM box:1\nCOPY missing /y": "no such file in the build context",
    "FROM box:1\nCOPY ../secret /y": "leaves the build context",
    "FROM box:1\nCOPY link /y": "no such file in the build context",
    "FROM box:1\nWORKDIR $UNKNOWN": "WORKDIR",
    "FROM": "FROM",
    "FROM box:1\nCOPY **x /y": "no such file in the build context",
    "FROM box:1\nCOPY --chmod=999 names.txt /y": "COPY --chmod=999",
    "FROM box:1\nCOPY names.txt /etc\nRUN rm -r /etc && touch /etc\nRUN true": "a file at /etc",
}


@needs_bubblewrap
def test_a_command_that_begins_with_a_bracket_is_one_of_the_shell(context):
    built = build_image(context, "FROM box:1\nRUN [ -d /etc ] && touch /made\n")
    assert (built.root / "made").is_file()


@needs_bubblewrap
def test_a_context_behind_a_link_is_copied(context, tmp_path):
    (context / "again.txt").symlink_to("names.txt")
    (tmp_path / "linked").symlink_to(context)
    built = build_image(tmp_path / "linked", "FROM box:1\nCOPY again.txt /\n")
    assert (built.root / "again.txt").read_text() == "joe\n"


def test_a_dockerfile_that_is_no_text_is_one_sentence(context):
    (context / "Dockerfile").write_bytes(b"FROM \xff")
    with pytest.raises(UsageError, match="is no UTF-8 text"):
        build_image(context)


@needs_bubblewrap
@pytest.mark.parametrize("text", REFUSED)
def test_what_needs_a_daemon_is_refused_by_name(context, text):
    (context / "link").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match=re.escape(REFUSED[text])):
        build_without_daemon(context, text)


def test_without_a_base_and_an_engine_both_reasons_are_given(context, monkeypatch):
    def missing():
        raise InfrastructureFault("No container engine answers: docker cannot be run.")

    monkeypatch.setattr("hud_integrations.containers.image_build.container_engine", missing)
    with pytest.raises(UsageError, match="FROM ubuntu:24.04: .* No container engine answers"):
        build_image(context, "FROM ubuntu:24.04\n")


@pytest.mark.slow
@needs_bubblewrap
async def test_what_needs_a_daemon_is_built_by_docker_or_podman(context):
    require_engine()
    for info, content in programs():
        path = context / "root" / info.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755)
    text = (
        "FROM scratch AS first\nCOPY root/ /\nRUN echo built > /made\n"
        "FROM first\nCOPY --from=first /made /app/copied\nENV WORD=hello\nWORKDIR /app\nVOLUME /data\n"
    )
    box = build_image(context, text)
    assert (box.workdir, box.variables["WORD"]) == ("/app", "hello")
    assert build_image(context, text) == box
    async with workspace(box) as (_, client):
        assert (await client.run("cat copied; echo $WORD")).stdout == "built\nhello\n"
