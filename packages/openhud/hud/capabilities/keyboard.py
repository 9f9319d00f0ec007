"""Keys by the names that models use, with the codes of browsers (DOM) and X servers (keysyms).

Covers a US keyboard and the names of `xdotool`, the DOM and providers' computer tools.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import dataclass

from hud.errors import UsageError


@dataclass(frozen=True)
class Key:
    """A key, or a character of any keyboard."""

    name: str
    """DOM `key`: `Enter`, `a`, `A`."""
    code: str = ""
    """DOM `code`, the key's position: `KeyA`; empty for characters that a US keyboard lacks."""
    key_code: int = 0
    """Windows virtual key code."""
    keysym: int = 0
    """X keysym."""
    text: str = ""
    """Text that the key types, or ""."""

    @property
    def modifier(self) -> int:
        """Bit of a modifier key in the DevTools protocol; 0 for other keys."""
        return _MODIFIERS.get(self.name, 0)


_MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}

_SPECIAL = {
    key.name.lower(): key
    for key in [
        Key("Enter", "Enter", 13, 0xFF0D, "\r"),
        Key("Tab", "Tab", 9, 0xFF09),
        Key("Backspace", "Backspace", 8, 0xFF08),
        Key("Escape", "Escape", 27, 0xFF1B),
        Key("Delete", "Delete", 46, 0xFFFF),
        Key("Insert", "Insert", 45, 0xFF63),
        Key("Home", "Home", 36, 0xFF50),
        Key("End", "End", 35, 0xFF57),
        Key("PageUp", "PageUp", 33, 0xFF55),
        Key("PageDown", "PageDown", 34, 0xFF56),
        Key("ArrowLeft", "ArrowLeft", 37, 0xFF51),
        Key("ArrowUp", "ArrowUp", 38, 0xFF52),
        Key("ArrowRight", "ArrowRight", 39, 0xFF53),
        Key("ArrowDown", "ArrowDown", 40, 0xFF54),
        Key("Shift", "ShiftLeft", 16, 0xFFE1),
        Key("Control", "ControlLeft", 17, 0xFFE3),
        Key("Alt", "AltLeft", 18, 0xFFE9),
        Key("Meta", "MetaLeft", 91, 0xFFEB),
        Key("CapsLock", "CapsLock", 20, 0xFFE5),
        Key("NumLock", "NumLock", 144, 0xFF7F),
        Key("ScrollLock", "ScrollLock", 145, 0xFF14),
        Key("Pause", "Pause", 19, 0xFF13),
        Key("PrintScreen", "PrintScreen", 44, 0xFF61),
        Key("ContextMenu", "ContextMenu", 93, 0xFF67),
        *(Key(f"F{n}", f"F{n}", 111 + n, 0xFFBD + n) for n in range(1, 25)),
    ]
}

_TWICE = {name.lower(): name.lower() for name in _MODIFIERS}
"""Keys that exist on the left and the right."""
_ALIASES = {
    "return": "enter",
    "kpenter": "enter",
    "esc": "escape",
    "del": "delete",
    "ins": "insert",
    "pgup": "pageup",
    "prior": "pageup",
    "pgdn": "pagedown",
    "pgdown": "pagedown",
    "next": "pagedown",
    "left": "arrowleft",
    "up": "arrowup",
    "right": "arrowright",
    "down": "arrowdown",
    "option": "alt",
    "cmd": "meta",
    "command": "meta",
    "win": "meta",
    "windows": "meta",
    "caps": "capslock",
    "print": "printscreen",
    "menu": "contextmenu",
    "back": "backspace",
    "controlormeta": "control",
    **{
        f"{name}{side}": key
        for name, key in {**_TWICE, "ctrl": "control", "super": "meta"}.items()
        for side in ("", "left", "right", "l", "r")
    },
}

_CHARACTER_NAMES = {
    "space": " ",
    "spacebar": " ",
    "plus": "+",
    "minus": "-",
    "equal": "=",
    "slash": "/",
    "backslash": "\\",
    "period": ".",
    "comma": ",",
    "semicolon": ";",
    "colon": ":",
    "apostrophe": "'",
    "quotedbl": '"',
    "grave": "`",
    "bracketleft": "[",
    "bracketright": "]",
    "underscore": "_",
    "exclam": "!",
    "at": "@",
    "numbersign": "#",
    "dollar": "$",
    "percent": "%",
    "asciicircum": "^",
    "ampersand": "&",
    "asterisk": "*",
    "parenleft": "(",
    "parenright": ")",
    "braceleft": "{",
    "braceright": "}",
    "bar": "|",
    "less": "<",
    "greater": ">",
    "question": "?",
    "asciitilde": "~",
}

# Character, shifted character, DOM code, virtual key code.
_PUNCTUATION = [
    (" ", " ", "Space", 32),
    (";", ":", "Semicolon", 186),
    ("=", "+", "Equal", 187),
    (",", "<", "Comma", 188),
    ("-", "_", "Minus", 189),
    (".", ">", "Period", 190),
    ("/", "?", "Slash", 191),
    ("`", "~", "Backquote", 192),
    ("[", "{", "BracketLeft", 219),
    ("\\", "|", "Backslash", 220),
    ("]", "}", "BracketRight", 221),
    ("'", '"', "Quote", 222),
    *((digit, ")!@#$%^&*("[int(digit)], f"Digit{digit}", ord(digit)) for digit in string.digits),
]
_PLACES = {
    **{plain: (code, key_code) for plain, _, code, key_code in _PUNCTUATION},
    **{shifted: (code, key_code) for _, shifted, code, key_code in _PUNCTUATION},
    **{letter: (f"Key{letter.upper()}", ord(letter.upper())) for letter in string.ascii_letters},
}
_SHIFTED = {
    **{plain: shifted for plain, shifted, *_ in _PUNCTUATION},
    **dict(zip(string.ascii_lowercase, string.ascii_uppercase, strict=True)),
}
SHIFTED_CHARACTERS = frozenset(_SHIFTED.values()) - {" "}


def key_named(name: str) -> Key:
    """Return the key of that name; raises `UsageError` for an unknown name."""
    if len(name) == 1:
        return character(name)
    plain = name.lower().replace("_", "").replace("-", "").replace(" ", "")
    if plain in _CHARACTER_NAMES:
        return character(_CHARACTER_NAMES[plain])
    key = _SPECIAL.get(_ALIASES.get(plain, plain))
    if key is None:
        raise UsageError(
            f"There is no key {name!r}; keys are single characters, or names such as Enter, ctrl, Page_Down, F5."
        )
    return key


def character(value: str) -> Key:
    """Return the key that types one character."""
    if value in "\r\n":
        return _SPECIAL["enter"]
    if value == "\t":
        return _SPECIAL["tab"]
    code, key_code = _PLACES.get(value, ("", 0))
    number = ord(value)
    # Keysyms of Latin-1 characters are their code points; of others, 2^24 plus the code point.
    keysym = number if 0x20 <= number <= 0x7E or 0xA0 <= number <= 0xFF else 0x01000000 | number
    return Key(value, code, key_code, keysym, value)


def shifted(key: Key) -> Key:
    """Return the key as shifted."""
    return character(_SHIFTED[key.name]) if key.name in _SHIFTED else key


def keys_named(names: str | Iterable[str]) -> list[Key]:
    """Return a combination's keys: `["ctrl", "c"]`, or `"ctrl+c"`. Raises `UsageError` for none, or an unknown one."""
    parts: list[str] = []
    for name in [names] if isinstance(names, str) else names:
        parts.extend(_split(name))
    if not parts:
        raise UsageError("No key was named.")
    return [key_named(part) for part in parts]


def _split(name: str) -> list[str]:
    if len(name) == 1:
        return [name]
    parts = [part for part in name.split("+") if part]
    return [*parts, "+"] if name.endswith("++") else parts
