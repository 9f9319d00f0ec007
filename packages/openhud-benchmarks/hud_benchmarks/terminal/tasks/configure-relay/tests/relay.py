"""A relay of notices: `python3 relay.py FILE` serves HTTP as an INI file says. `--check` only reads the file.

GET /notice?topic=T&user=U answers with the notices of a topic that the user may see, as JSON.
"""

import configparser
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

SECTIONS = ("server", "limits")


class Relay:
    """The settings of one file.

    [server] host, port. [limits] per_answer: most notices of an answer; longest: characters of a notice. [topic NAME] for each topic:
    readers: users separated by commas, `*` for all, `@GROUP` for a group; deny: users that are refused even so; notices: one a line.
    [group NAME] members: users or @GROUPs, separated by commas.
    """

    def __init__(self, path):
        parser = configparser.ConfigParser(interpolation=None)
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
        for name in parser.sections():
            if name not in SECTIONS and name.partition(" ")[0] not in ("topic", "group"):
                raise ValueError(f"unknown section {name!r}")
        self.host = parser.get("server", "host")
        self.port = parser.getint("server", "port")
        self.per_answer = parser.getint("limits", "per_answer")
        self.longest = parser.getint("limits", "longest")
        self.parser = parser

    def names(self, text, seen=()):
        """Return the users of a list of names and groups."""
        users = set()
        for name in filter(None, (part.strip() for part in text.split(","))):
            if not name.startswith("@"):
                users.add(name)
            elif name not in seen:
                users |= self.names(self.parser.get(f"group {name[1:]}", "members"), (*seen, name))
        return users

    def notices(self, topic, user):
        """Return the notices for a user; None where the user may not read the topic."""
        section = f"topic {topic}"
        if not self.parser.has_section(section):
            return None
        readers = self.names(self.parser.get(section, "readers"))
        denied = self.names(self.parser.get(section, "deny", fallback=""))
        if user in denied or not (user in readers or "*" in readers):
            return None
        lines = self.parser.get(section, "notices").strip().splitlines()
        return [line.strip()[: self.longest] for line in lines][: self.per_answer]


def handler(relay):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            query = parse_qs(urlsplit(self.path).query)
            topic, user = (query.get(name, [""])[0] for name in ("topic", "user"))
            notices = relay.notices(topic, user)
            body = json.dumps(notices).encode()
            self.send_response(403 if notices is None else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    return Handler


def main():
    relay = Relay(sys.argv[-1])
    if "--check" not in sys.argv:
        HTTPServer((relay.host, relay.port), handler(relay)).serve_forever()


if __name__ == "__main__":
    main()
