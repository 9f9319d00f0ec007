"""The process that has verifiers: `python child.py TASKSET CONFIG MOST FOLDER`. It imports nothing of this package.

Prints one JSON line with the tasks, then answers each line `{"number", "index", "answer"}` with the rewards of that answer
and the line's number, as soon as it has them: a reward that waits for a judge keeps no other waiting.
"""

import asyncio
import inspect
import itertools
import json
import sys
from typing import Any

OUT, sys.stdout = (
    sys.stdout,
    sys.stderr,
)  # A taskset may print; the protocol has the output for itself.


def refusal(taskset_id: str, task: Any) -> str | None:
    """Return the reason why a taskset's tasks cannot be graded by an answer alone, or None."""
    import verifiers.v1 as vf
    from verifiers.v1.utils.loaders import environment_class

    kind = type(task)
    if environment_class(taskset_id) is not vf.SingleAgentEnv:
        return "it has an environment of its own, which talks with the agent"
    if kind.toolsets(task.config):
        return "it has toolsets"
    if kind.NEEDS_CONTAINER:
        return "it needs a container"
    for hook in ("setup", "finalize"):
        if getattr(kind, hook) is not getattr(vf.Task, hook):
            return f"it has a {hook} hook, which works in a runtime"
    for signal in (*task.hooks("reward"), *task.hooks("metric")):
        wanted = inspect.signature(signal).parameters.get("runtime")
        if wanted is not None and wanted.default is inspect.Parameter.empty:
            return f"its {signal.__name__} works in a runtime"
    return None


def prompt_of(data: Any) -> list[dict[str, str]] | None:
    """Return the messages of a task, the system prompt first; None where they are more than text."""
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if data.prompt is None:
        return None
    if isinstance(data.prompt, str):
        return [*system, {"role": "user", "content": data.prompt}]
    messages = [{"role": message.role, "content": message.content} for message in data.prompt]
    plain = all(
        isinstance(message["content"], str) and message["role"] != "tool" for message in messages
    )
    return [*system, *messages] if plain else None


def described(index: int, task: Any, reason: str | None) -> dict[str, Any]:
    prompt = prompt_of(task.data)
    if reason is None and prompt is None:
        reason = "its prompt is not text"
    name = task.data.name or task.data.id or str(index)
    return {"name": name, "prompt": prompt, "refused": reason}


async def scored(task: Any, answer: str) -> dict[str, Any]:
    """Return the rewards of an answer, by the task's own signals, without a runtime."""
    import verifiers.v1 as vf
    from verifiers.v1.types import AssistantMessage, UserMessage

    trace: Any = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=[
            vf.MessageNode(message=UserMessage(content=task.data.prompt_text)),
            vf.MessageNode(parent=0, message=AssistantMessage(content=answer), sampled=True),
        ],
        is_completed=True,
        ok=True,
    )
    await task.score(trace)
    named = {
        name: None if reward is None else reward.value for name, reward in trace.rewards.items()
    }
    missing = [name for name, value in named.items() if value is None]
    if missing or not named:
        return {"error": f"no reward was given by {', '.join(missing) or 'any signal'}"}
    return {"reward": trace.reward, "rewards": named, "metrics": dict(trace.metrics)}


def say(value: dict[str, Any]) -> None:
    OUT.write(json.dumps(value) + "\n")
    OUT.flush()


async def answer(tasks: list[Any], request: dict[str, Any]) -> None:
    try:
        reply = await scored(tasks[request["index"]], request["answer"])
    except Exception as error:
        reply = {"error": f"{type(error).__name__}: {error}"}
    say({**reply, "number": request["number"]})


async def serve(tasks: list[Any]) -> None:
    """Answer requests until the input ends."""
    loop = asyncio.get_running_loop()
    working = set()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        task = asyncio.create_task(answer(tasks, json.loads(line)))
        working.add(task)
        task.add_done_callback(working.discard)


def main() -> None:
    from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

    sys.path.append(sys.argv[4])
    taskset_id, config, most = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    try:
        made = load_taskset(taskset_config_type(taskset_id)(id=taskset_id, **config))
        tasks = list(itertools.islice(iter(made), most))
        reason = refusal(taskset_id, tasks[0]) if tasks else "it has no tasks"
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"tasks": [described(index, task, reason) for index, task in enumerate(tasks)]})
    asyncio.run(serve(tasks))


if __name__ == "__main__":
    main()
