"""A program of nobody's: it asks its model once, calls a tool, writes a file and prints its answer. Python's library alone."""

import argparse
import json
import os
import sys
import time
import urllib.request


def post(url, body, key=""):
    """Post JSON, and return the response's: a document, or the last one of an event stream."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {key}",
    }
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as response:
        text = response.read().decode()
    lines = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")]
    return json.loads(lines[-1] if lines else text)


def call_tool(server, name, arguments):
    """Call a tool of an MCP server, and return its text."""
    params = {"name": name, "arguments": arguments}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return post(server, body)["result"]["content"][0]["text"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt_file")
    parser.add_argument("--mcp")
    parser.add_argument("--write")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--sleep", type=float, default=0)
    parser.add_argument("--sleep-after", type=float, default=0)
    parser.add_argument("--show-variables", action="store_true")
    options = parser.parse_args()
    with open(options.prompt_file) as file:
        prompt = file.read()
    time.sleep(options.sleep)
    body = {
        "model": os.environ["OPENAI_MODEL"],
        "messages": [{"role": "user", "content": prompt}],
    }
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    answer = post(url, body, os.environ["OPENAI_API_KEY"])["choices"][0]["message"]["content"]
    if options.mcp:
        with open(options.mcp) as file:
            server = json.load(file)["mcpServers"]["environment"]["url"]
        answer = call_tool(server, "look", {"at": 7})
    if options.write:
        with open(options.write, "w") as file:
            file.write(answer)
    time.sleep(options.sleep_after)
    if options.show_variables:
        answer = json.dumps(sorted(os.environ))
    print(answer)
    print("It thought about that.", file=sys.stderr)
    return options.exit


if __name__ == "__main__":
    sys.exit(main())
