"""Serves the agent's configuration with the service's own source, and asks for every topic as every user."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

CONFIG = Path("/app/relay.ini")
NOTICES = {
    "menu": [
        "monday: soup of lentils, with bread from the bakery around the corner",
        "tuesday: 50% off all salads",
        "wednesday: potatoes; quark and linseed oil",
    ],
    "deploys": ["shop 4.1 went out at 10:02", "mail 1.3 went out at 11:30 = the last one of today"],
    "oncall": ["ben has the pager until friday"],
    "payroll": ["the run of may is on the 28th"],
}
LEADS = {"cleo", "dan"}
ONCALL = {"ada", "ben", *LEADS}
USERS = {*ONCALL, "ivo", "fay", "gus", "eve", "*", "@leads", "staff"}
READERS = {
    "menu": USERS,
    "deploys": {*ONCALL, "fay", "gus"},
    "oncall": ONCALL,
    "payroll": {*LEADS, "fay"},
}


def answer(topic: str, user: str) -> list[str] | None:
    address = f"http://127.0.0.1:8642/notice?topic={topic}&user={user}"
    try:
        with urllib.request.urlopen(address, timeout=5) as response:
            return json.loads(response.read(100_000))
    except urllib.error.HTTPError:
        return None


def main() -> float:
    if CONFIG.is_symlink() or not CONFIG.is_file() or CONFIG.stat().st_size > 100_000:
        return 0.0
    sys.path.insert(0, "/tests")
    from relay import Relay

    try:
        relay = Relay(str(CONFIG))
    except Exception:  # The file may be anything.
        return 0.0
    limits = (relay.host, relay.port, relay.per_answer, relay.longest)
    if limits not in (("0.0.0.0", 8642, 20, 80), ("", 8642, 20, 80)):
        return 0.0
    server = subprocess.Popen([sys.executable, "-E", "-s", "-B", "/tests/relay.py", str(CONFIG)])
    try:
        for _ in range(100):
            try:
                answer("menu", "eve")
                break
            except OSError:
                time.sleep(0.1)
        return float(
            all(
                answer(topic, user) == (NOTICES[topic] if user in readers else None)
                for topic, readers in READERS.items()
                for user in USERS
            )
        )
    except (OSError, ValueError):
        return 0.0
    finally:
        server.kill()


Path("/logs/verifier/reward.txt").write_text(f"{main()}\n")
