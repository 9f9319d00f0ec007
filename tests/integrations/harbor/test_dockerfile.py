"""Dockerfiles of Harbor's tasks are read as a build reads them: variables, quotes, continued lines, stages."""

from pathlib import PurePosixPath

import pytest

from hud_integrations.harbor.dockerfile import read_dockerfile

# A Dockerfile's lines after FROM, with its working directory at the end.
WORKDIRS = {
    "ENV DIR=/srv\nWORKDIR $DIR": "/srv",
    "ENV DIR=/srv\nWORKDIR ${DIR}/game": "/srv/game",
    "ENV DIR /srv/old form\nWORKDIR $DIR": "/srv/old form",
    "ARG DIR=/srv\nWORKDIR $DIR": "/srv",
    "ARG DIR=/srv\nENV DIR=/env\nWORKDIR $DIR": "/env",
    "ENV DIR=/env\nARG DIR=/srv\nWORKDIR $DIR": "/env",
    "ARG DIR\nWORKDIR /srv/$DIR": "/srv",
    "ARG A=/a B=$A/b\nWORKDIR $B": "/a/b",
    "ENV A=/a\nENV A=/b B=$A\nWORKDIR $B": "/a",
    "WORKDIR ${X:-/srv}": "/srv",
    "ENV X=\nWORKDIR ${X:-/srv}": "/srv",
    "ENV X=\nWORKDIR /a${X-/srv}": "/a",
    "ENV X=1\nWORKDIR ${X:+/srv}": "/srv",
    "WORKDIR /a${X:+/srv}": "/a",
    "ENV Y=/deep\nWORKDIR ${X:-/srv${Y:-/none}}": "/srv/deep",
    "ENV X=/x\nWORKDIR ${X:-$UNKNOWN}": "/x",
    'ENV DIR="/two words"\nWORKDIR $DIR': "/two words",
    "ENV DIR=/two\\ words\nWORKDIR $DIR": "/two words",
    "ENV DIR=/srv\nWORKDIR '/$DIR'": "/$DIR",
    'ENV DIR=/srv\nWORKDIR "$DIR"': "/srv",
    "ENV DIR=/srv\nWORKDIR /\\$DIR": "/$DIR",
    "ENV DIR=/a-b\nWORKDIR $DIR-c": "/a-b-c",
    "ENV A=1 \\\n    # a comment\n\n    DIR=/srv\nWORKDIR $DIR": "/srv",
    "ENV A=1 \\   \n    DIR=/srv\nWORKDIR $DIR": "/srv",
    "workdir\t/srv\nWORKDIR a\nWORKDIR ../b": "/srv/b",
    "RUN <<EOF\nWORKDIR /wrong\nEOF\nWORKDIR /srv": "/srv",
    "RUN cat <<-'EOF' > x\n\tWORKDIR /wrong\n\tEOF\nWORKDIR /srv": "/srv",
    "ENV DIR=/wrong\nFROM other\nWORKDIR ${DIR:-/srv}": "/srv",
    "ENV DIR=/srv\nFROM first\nWORKDIR $DIR": "/srv",
    "WORKDIR /srv\nFROM first AS second\nWORKDIR a": "/srv/a",
    "WORKDIR /wrong\nFROM other": "/",
}


@pytest.mark.parametrize("lines", WORKDIRS)
def test_working_directories(lines):
    stage = read_dockerfile(f"FROM ubuntu AS first\n{lines}\n")
    assert stage.workdir == PurePosixPath(WORKDIRS[lines])
    assert not [part for part in stage.lost if "WORKDIR" in part or "ENV" in part]


UNKNOWN = ["$UNKNOWN", "${UNKNOWN}/x", "${X:?no}", "${X#/a}", "'/a", '"/a', "${X:-/a", "${X:-$UNKNOWN}", "${}"]  # fmt: skip


@pytest.mark.parametrize("value", UNKNOWN)
def test_a_value_that_only_a_build_knows_is_named(value):
    stage = read_dockerfile(
        f"FROM ubuntu\nWORKDIR /srv\nWORKDIR {value}\nENV A={value}\nENV B=$A\n"
    )
    assert stage.workdir == PurePosixPath("/srv")
    assert stage.variables == {}
    assert stage.lost[1:] == [f"Dockerfile: WORKDIR {value}", "Dockerfile: ENV A", "Dockerfile: ENV B"]  # fmt: skip


def test_arguments_before_the_first_stage_are_known_where_they_are_declared():
    text = "ARG DIR=/srv BASE=first\nFROM ubuntu AS first\nENV A=1\nFROM $BASE\n{}WORKDIR /x${{DIR:-}}\n"
    assert read_dockerfile(text.format("")).workdir == PurePosixPath("/x")
    declared = read_dockerfile(text.format("ARG DIR\n"))
    assert declared.workdir == PurePosixPath("/x/srv")
    assert declared.variables == {"A": "1"}, "arguments are no variables of the container"


def test_another_escape_character():
    stage = read_dockerfile(
        "# syntax=docker/dockerfile:1\n# escape=`\nFROM x\nENV A=1 `\n  B=a\\b\n"
    )
    assert stage.variables == {"A": "1", "B": "a\\b"}


@pytest.mark.parametrize(
    ("line", "sources", "target"),
    [
        ("COPY a.txt ${DIR}/", ["a.txt"], "/srv/"),
        ("ADD --chown=1:1 $FILE b .", ["c.txt", "b"], "."),
        ('COPY ["two words", "$DIR"]', ["two words"], "/srv"),
        ("COPY --from=first /x /y", None, None),
        ("COPY $UNKNOWN .", None, None),
        ("COPY *.txt .", None, None),
        ("COPY <<EOF /x\nFROM wrong\nEOF", None, None),
    ],
)
def test_copies(line, sources, target):
    stage = read_dockerfile(f"FROM ubuntu\nENV DIR=/srv FILE=c.txt\n{line}\n")
    assert [(copy.sources, copy.target) for copy in stage.copies] == ([(sources, target)] if sources else [])  # fmt: skip
    named = [f"Dockerfile: {line.splitlines()[0]}"] if sources is None else []
    assert stage.lost[1:] == named
