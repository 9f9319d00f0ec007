"""What a sandbox mounts of an installed program: its package, and its interpreter's."""

from hud.agents.programs.program_files import program_files


def script(path, first, content=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{first}\n{content}")
    path.chmod(0o755)
    return path


def test_a_binary_behind_links_is_itself_and_its_links(tmp_path):
    binary = script(tmp_path / "versions" / "2.1", "\x7fELF")
    link = tmp_path / "bin" / "agent"
    link.parent.mkdir()
    link.symlink_to("../versions/2.1")
    assert program_files(link) == [link, binary]


def test_a_package_of_node_brings_its_modules_and_the_interpreter(tmp_path, monkeypatch):
    modules = tmp_path / "lib" / "node_modules"
    script(modules / "agent" / "cli.js", "#!/usr/bin/env node")
    node = script(tmp_path / "node" / "bin" / "node", "\x7fELF")
    monkeypatch.setenv("PATH", str(node.parent))
    link = tmp_path / "bin" / "agent"
    link.parent.mkdir()
    link.symlink_to(modules / "agent" / "cli.js")
    assert program_files(link) == [link, modules, node]


def test_a_package_of_python_brings_its_environment_and_the_base(tmp_path):
    base = script(tmp_path / "python" / "bin" / "python3", "\x7fELF")
    (tmp_path / "python" / "lib").mkdir()
    venv = tmp_path / "venv"
    python = venv / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(base)
    (venv / "pyvenv.cfg").write_text(f"home = {base.parent}\nversion = 3.11\n")
    program = script(venv / "bin" / "agent", f"#!{python}")
    assert program_files(program) == [venv, tmp_path / "python"]


def test_a_circle_of_links_ends(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.symlink_to(second)
    second.symlink_to(first)
    assert program_files(first) == []


def test_a_program_behind_a_linked_folder_brings_what_the_folder_is(tmp_path):
    real = tmp_path / "real" / "node_modules"
    (real / ".bin").mkdir(parents=True)
    (real / ".bin" / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    modules = tmp_path / "linked" / "node_modules"
    assert set(program_files(modules / ".bin" / "tool")) >= {modules, real}
