"""A stand-in for the docker command, which keeps its contract: its state is the folder `DOCKER_CONFIG`."""

import sys
from pathlib import Path

DOCKER = '''#!{python}
"""docker info, build, image ls, save, load, run, port, inspect, logs, rm: images are folders, containers are processes."""
import json, os, pathlib, shutil, signal, socket, subprocess, sys, tarfile, uuid
state = pathlib.Path(os.environ["DOCKER_CONFIG"])
command, *rest = sys.argv[1:]
with (state / "calls").open("a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
def folder_of(image):
    return state / image.replace("/", "_").replace(":", "_")
def values(option):
    return [rest[at + 1] for at, part in enumerate(rest) if part == option]
if command == "info":
    if (state / "down").exists():
        sys.exit("Cannot connect to the Docker daemon")
elif command == "build":
    text = pathlib.Path(values("--file")[0]).read_text()
    print("#1 building with", os.environ.get("ARG", "nothing"), os.environ.get("SECRET", "none"))
    if "RUN false" in text:
        sys.exit("ERROR: process /bin/sh -c false did not complete")
    shutil.copytree(rest[-1], folder_of(values("--tag")[0]))
elif command == "image":
    if folder_of(rest[-1]).is_dir():
        print("sha256:0123")
elif command == "save":
    if not folder_of(rest[-1]).is_dir():
        sys.exit("Error response from daemon: reference does not exist")
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
        tar.add(folder_of(rest[-1]), folder_of(rest[-1]).name)
elif command == "load":
    with tarfile.open(values("--input")[0]) as tar:
        tar.extractall(state, filter="data")
elif command == "run":
    image = folder_of(rest[-1])
    if not image.is_dir():
        sys.exit("docker: No such image")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    name = uuid.uuid4().hex
    given = {{one: os.environ[one] for one in values("--env")}}
    served = subprocess.Popen(
        ["{python}", "-m", "hud.environment.channel", str(image / "env.py"), "--port", str(port)],
        env={{"PATH": os.environ["PATH"], **given}}, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=(state / (name + ".log")).open("w"), stderr=subprocess.STDOUT)
    (state / name).write_text(json.dumps([served.pid, port]))
    print(name)
elif command == "port":
    print("127.0.0.1:%d" % json.loads((state / rest[0]).read_text())[1])
elif command == "inspect" and "Healthcheck" in rest[1]:
    print("null")
elif command == "inspect":
    pid, _ = json.loads((state / rest[-1]).read_text())
    stat = pathlib.Path(f"/proc/{{pid}}/stat")
    running = stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
    print("true 0 false" if running else "false 3 false")
elif command == "logs":
    print((state / (rest[-1] + ".log")).read_text())
elif command == "rm":
    pid, _ = json.loads((state / rest[-1]).read_text())
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    (state / rest[-1]).unlink()
'''


def stand_in(place: Path, state: Path) -> dict[str, str]:
    """Write the command into `place`; returns variables by which it is found, with `state` as its daemon's."""
    state.mkdir(parents=True)
    place.mkdir(exist_ok=True)
    for name in (
        "docker",
        "podman",
    ):  # A podman of this machine would be used where docker is down.
        (place / name).write_text(DOCKER.format(python=sys.executable))
        (place / name).chmod(0o755)
    return {"PATH": f"{place}:/usr/bin:/bin", "DOCKER_CONFIG": str(state)}
