"""Dotenv files as other programs write them."""

import pytest

from hud.errors import UsageError
from hud.settings import read_dotenv

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
