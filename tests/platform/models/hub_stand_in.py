"""A Hugging Face hub on loopback that takes uploads in its documented wire format: repositories, preupload, LFS and commits."""

import base64
import hashlib
import json

COMMIT = "c" * 40
TOKEN = "hf_of_a_test"


class UploadHub:
    """An ASGI application; `repositories` are the files of each, by its id."""

    def __init__(self, url=""):
        self.url = url
        self.repositories = {}
        self.visibility = {}
        self.stored = {}
        """Contents of LFS objects by their SHA-256."""
        self.messages = []

    async def __call__(self, scope, receive, send):
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = dict(scope["headers"])
        self.url = "http://" + headers[b"host"].decode()
        status, answer = self.answer(scope["method"], scope["path"], headers, body)
        content = json.dumps(answer).encode()
        kinds = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
        ]
        if status == 404:
            kinds.append((b"x-error-code", b"RepoNotFound"))
        await send({"type": "http.response.start", "status": status, "headers": kinds})
        content = b"" if scope["method"] == "HEAD" else content
        await send({"type": "http.response.body", "body": content})

    def answer(self, method, path, headers, body):
        if method == "PUT" and path.startswith("/objects/"):
            assert hashlib.sha256(body).hexdigest() == path.rpartition("/")[2]
            self.stored[path.rpartition("/")[2]] = body
            return 200, {}
        if headers.get(b"authorization") != f"Bearer {TOKEN}".encode():
            return 401, {"error": "Invalid credentials"}
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        name = path.removeprefix("/api/models/").removeprefix("/")
        name = "/".join(name.split("/")[:2]).removesuffix(".git")
        files = self.repositories.get(name)
        if files is None:
            return 404, {"error": "Repository not found"}
        if "/preupload/" in path:
            return 200, {"files": [self.mode(file) for file in json.loads(body)["files"]]}
        if path.endswith("/info/lfs/objects/batch"):
            return 200, {"transfer": "basic", "objects": self.batch(json.loads(body))}
        if "/commit/" in path:
            self.commit(files, body)
            url = f"{self.url}/{name}/commit/{COMMIT}"
            return 200, {"commitUrl": url, "commitOid": COMMIT, "success": True}
        siblings = [{"rfilename": file} for file in files]
        return 200, {"id": name, "sha": COMMIT, "siblings": siblings, "private": True}

    def create(self, asked):
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.repositories:
            return 409, {
                "error": "You already created this model repo",
                "url": f"{self.url}/{name}",
            }
        self.repositories[name] = {}
        self.visibility[name] = asked.get("visibility") or (
            "private" if asked.get("private") else None
        )
        return 200, {"url": f"{self.url}/{name}", "name": name}

    def mode(self, file):
        mode = "lfs" if file["path"].endswith((".safetensors", ".gguf")) else "regular"
        return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}

    def batch(self, asked):
        return [
            {**one, "actions": {"upload": {"href": f"{self.url}/objects/{one['oid']}"}}}
            for one in asked["objects"]
        ]

    def commit(self, files, body):
        for line in map(json.loads, body.decode().splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.messages.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.stored[value["oid"]]
