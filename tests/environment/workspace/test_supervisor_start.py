"""The supervisor of a sandbox is started for each workspace: it imports as little as it can, and says what the kernel said."""

import subprocess
import sys
from pathlib import Path

import hud.environment.workspace.inside

INSIDE = Path(hud.environment.workspace.inside.__file__).parent
ALONE = [sys.executable, "-I", "-S", "-B", "-c"]


def alone(program):
    """Return what a program prints in an interpreter without packages."""
    text = f"import sys; sys.path.insert(0, {str(INSIDE)!r})\n{program}"
    return subprocess.run([*ALONE, text], capture_output=True, text=True, check=True).stdout


def test_no_module_written_in_python_is_imported():
    printed = alone(
        "before = set(sys.modules); import supervisor\n"
        "print(*sorted(name for name in set(sys.modules) - before"
        " if str(getattr(sys.modules[name], '__file__', '')).endswith('.py')))"
    )
    assert printed.split() == ["__future__", "supervisor"]


def test_functions_of_the_c_library_answer_and_set_errno():
    printed = alone(
        "import supervisor, posix, _ctypes\n"
        "print(supervisor.library_function('getpid')() == posix.getpid())\n"
        "print(supervisor.library_function('rmdir')(b'/'), _ctypes.get_errno() > 0)\n"
        "print(bytes(memoryview(supervisor.Pointer(b'steps'))) != bytes(8))"
    )
    assert printed.split() == ["True", "-1", "True", "True"]
