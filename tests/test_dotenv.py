"""Dotenv files as other programs write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.dotenv import read_dotenv, write_dotenv
from hud.errors import UsageError

KEY = "-----BEGIN KEY-----\nabc=\n-----END KEY-----"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (f'KEY="{KEY}"\nOTHER=fine\n', {"KEY": KEY, "OTHER": "fine"}),
        (f"KEY='{KEY}'\r\nOTHER=fine", {"KEY": KEY, "OTHER": "fine"}),
        ("A=\"two\\nlines\"\nB='one\\nline'", {"A": "two\nlines", "B": "one\\nline"}),
        ('A="say \\"hi\\""', {"A": 'say "hi"'}),
        ("export A=1\n  B = 2  \n# C=3\n\nD=", {"A": "1", "B": "2", "D": ""}),
        ("A=1 # one\nB='1' # one\nC=a#b\nD= # none", {"A": "1", "B": "1", "C": "a#b", "D": ""}),
        ("A=it's\nB=a=b==", {"A": "it's", "B": "a=b=="}),
        ("\ufeffA=1", {"A": "1"}),
        ("no assignment\nA=1", {"A": "1"}),
    ],
)
def test_values(tmp_path, text, pairs):
    (tmp_path / ".env").write_bytes(text.encode())
    assert read_dotenv(tmp_path / ".env") == pairs


def test_a_quote_without_its_end_is_refused(tmp_path):
    (tmp_path / ".env").write_text('A=1\nB="open\nC=2\n')
    with pytest.raises(UsageError, match=r"\.env:2: the value of B"):
        read_dotenv(tmp_path / ".env")


@pytest.mark.parametrize(
    "line", ["OPENAI_API_KEY sk-1", "OPENAI_API_KEY: sk-1", "export TOKEN abc", "TOKEN\tabc"]
)
def test_a_value_without_its_sign_is_refused_with_its_line(tmp_path, line):
    (tmp_path / ".env").write_text(f"A=1\n# {line}\n{line}\nB=2\n")
    with pytest.raises(UsageError, match=r"\.env:3: write \w+=VALUE; the line has no =\."):
        read_dotenv(tmp_path / ".env")


@pytest.mark.parametrize("text", ["export A", "A", "-----BEGIN KEY-----", "a: 1", "then B=1"])
def test_lines_of_other_programs_are_left(tmp_path, text):
    (tmp_path / ".env").write_text(f'K="one\nTOKEN abc\ntwo"\n{text}\n')
    assert read_dotenv(tmp_path / ".env")["K"] == "one\nTOKEN abc\ntwo"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"A=1\nB=\xe9\n", r"\.env:2: this is no text in UTF-8"),
        ("A=1\n".encode("utf-16"), r"\.env:1: this is no text in UTF-8"),
        (b"A=1\n\nB=a\0b\n", r"\.env:3: a value has a zero byte"),
    ],
)
def test_a_file_that_is_no_text_is_refused_with_its_line(tmp_path, content, sentence):
    (tmp_path / ".env").write_bytes(content)
    with pytest.raises(UsageError, match=sentence):
        read_dotenv(tmp_path / ".env")


def test_a_folder_of_that_name_has_no_values(tmp_path):
    (tmp_path / ".env").mkdir()
    assert read_dotenv(tmp_path / ".env") == {}


VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(before=VALUES, now=VALUES, other=VALUES)
def test_what_is_written_is_read(tmp_path_factory, before, now, other):
    path = tmp_path_factory.getbasetemp() / "written.env"
    path.unlink(missing_ok=True)
    write_dotenv(path, {"A": before, "B": other})
    write_dotenv(path, {"A": now})
    assert read_dotenv(path) == {"A": now, "B": other}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_value_of_several_lines_is_replaced_whole_and_other_lines_stay(tmp_path):
    path = tmp_path / ".env"
    path.write_text(f'# Mine\nexport A="{KEY}"\nB=1 # one')
    write_dotenv(path, {"A": "x #y"})
    assert path.read_text() == '# Mine\nB=1 # one\nA="x #y"\n'


def test_simple_values_are_written_without_quotes(tmp_path):
    path = tmp_path / ".env"
    write_dotenv(
        path, {"HUD_API_URL": "http://localhost:8000", "HUD_API_KEY": "hud_a-b_1", "C": ""}
    )
    assert path.read_text() == "HUD_API_URL=http://localhost:8000\nHUD_API_KEY=hud_a-b_1\nC=\n"


def test_a_file_with_an_open_quote_is_not_replaced(tmp_path):
    path = tmp_path / ".env"
    path.write_text('A="open')
    with pytest.raises(UsageError, match=r"\.env:1: the value of A"):
        write_dotenv(path, {"B": "1"})
    assert path.read_text() == 'A="open'
