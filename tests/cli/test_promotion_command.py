"""`hud models promote`, the gate in `hud train`, and what goes round them."""

import json

import pytest

from hud.cli.main import run
from hud.client import disconnect

TASKS = """
from hud import Environment

env = Environment("letters")

@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 30)

tasks = [say(word=word) for word in ("red", "green", "blue", "yellow", "pink", "black", "white", "grey")]
for place, task in enumerate(tasks):
    task.columns = {"tag": "dark" if place % 2 else "light"}
"""
CREATE = "models create m --tasks tasks.py --hidden 32 --layers 1 --vocab-size 300 --max-context 96"
HELD_OUT = TASKS.replace(
    '("red", "green", "blue", "yellow", "pink", "black", "white", "grey")',
    '("cyan", "mint", "rust", "sand", "wine", "jade", "coal", "snow")',
)
PLAYED = "--taskset held_out.py --max-tokens 8 --max-turns 1"
ANSWER = {"role": "assistant", "content": "yes"}
TRAIN = (
    "train m tasks.py --steps 6 --group 8 --tasks-per-step 8 --max-tokens 8 --max-turns 1 --lr 0.01 --held-out held_out.py "
    "--eval-every 3 --promote gate --json"
)


@pytest.fixture
def hud(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(folder))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "held_out.py").write_text(HELD_OUT)

    def call(line, code=0):
        capsys.readouterr()
        assert run(line.split()) == code
        said = capsys.readouterr()
        call.warned = said.err
        return said.err if code == 2 else said.out

    yield call
    disconnect(folder)


def checkpoints(hud, slug="m"):
    return json.loads(hud(f"models checkpoints {slug} --json"))


@pytest.mark.slow
def test_the_head_of_a_gated_run_moves_only_where_the_gate_lets_it(hud):
    hud(CREATE)
    report = json.loads(hud(TRAIN))
    assert report["model"] == "m-candidate-1"
    assert len(checkpoints(hud, "m-candidate-1")) == 6, "training went on in the candidate"
    passed = [one for one in report["decisions"] if one["moved"]]
    assert passed, "a longer answer is learned in a few steps"
    assert all(one["overall"]["low"] > 0 for one in passed)
    promoted = checkpoints(hud)
    assert [node["promotion"]["from"]["checkpoint"] for node in promoted] == [
        one["from"]["checkpoint"] for one in passed
    ]
    assert promoted[-1]["is_active"]
    shown = hud("models head m")
    assert "by the gate: Better than the head: +0." in shown

    # A second run begins at the promoted head. Nothing is left to learn from rates of 0, so the gate holds.
    again = json.loads(hud(f"{TRAIN.replace('--steps 6', '--steps 3')} --zero-advantages"))
    assert again["model"] == "m-candidate-2"
    assert [one["moved"] for one in again["decisions"]] == [False]
    assert checkpoints(hud) == promoted

    assert (
        "goes round the gate"
        not in (hud(f"models head m --set {promoted[-1]['name']}"), hud.warned)[1]
    )
    hud("models head m --set base")
    assert hud.warned.startswith("Warning: this goes round the gate")


@pytest.mark.slow
def test_a_checkpoint_is_held_with_reasons_and_a_forced_one_is_recorded(hud):
    hud(CREATE)
    hud(
        "train m tasks.py --steps 1 --group 8 --tasks-per-step 8 --max-tokens 8 --max-turns 1 --lr 0.000001 --zero-advantages"
    )
    hud("models head m --set base")
    assert hud.warned == "", "no gate was ever used"
    (node,) = checkpoints(hud)
    held = hud(f"models promote m {node['name']} {PLAYED} --critical tag=dark", 1)
    assert held.startswith(f"Held: {node['name']} of m.\n  Not shown to be better: ")
    assert "tag=light" in held
    assert not checkpoints(hud)[0]["is_active"]

    forced = json.loads(hud(f"models promote m {node['name']} {PLAYED} --force --json"))
    assert (forced["moved"], forced["promoted"], forced["forced"]) == (True, False, True)
    (node,) = checkpoints(hud)
    assert node["is_active"]
    assert node["promotion"]["forced"]
    assert node["promotion"]["gate"] == {
        "min_gain": 0.0,
        "max_regression": 0.05,
        "critical": [],
        "looks": 1,
    }
    assert "promotion forced" in hud("models checkpoints m")
    assert "forced, held by the gate: Not shown to be better" in hud("models head m")


@pytest.mark.slow
def test_bad_input_is_one_sentence_before_anything_is_played(hud):
    hud(CREATE)
    for line, said in (
        (f"models promote m step-9 {PLAYED}", "has no checkpoint 'step-9'"),
        (f"models promote m base {PLAYED}", "has base weights that are not a checkpoint"),
        (f"models promote m head {PLAYED} --critical tag=blue", "the subsets of these tasks are tag=light, tag=dark"),
        (f"models promote m head {PLAYED} --critical tag", "COLUMN=VALUE, not 'tag'"),
        (f"models promote m head {PLAYED} --max-regression -1", "at least 0"),
        (TRAIN.replace(" --held-out held_out.py", ""), "The gate judges held-out scores"),
        (f"{TRAIN} --critical tag=blue", "No task has tag=blue"),
        (f"{TRAIN} --joined other", "cannot go with promote='gate'"),
    ):  # fmt: skip
        error = hud(line, 2)
        assert said in error
        assert error.count("\n") == 1
    assert json.loads(hud("jobs --json")) == []
    assert [one["model_name"] for one in json.loads(hud("models list --json"))] == ["m"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["removed", "removed with its base", "replaced"])
def test_a_candidate_that_is_removed_has_trained_too(hud, tmp_path, way):
    """What it learned from was found by its record alone."""
    hud(CREATE)
    played = hud("eval held_out.py m --all --group 2 --max-tokens 8 --max-steps 1 --json")
    learner = "b" if way == "removed with its base" else "a"
    hud(f"models fork m --name {learner}")
    job = json.loads(played)["job_id"]
    hud(f"train {learner} held_out.py --from {job} --epochs 1 --batch 8 --json --lr 0.01")
    small = "--steps 1 --group 4 --tasks-per-step 4 --max-tokens 8 --max-turns 1 --lr 0.01 --json"
    if learner == "b":
        hud("models fork b --name a")
        hud(f"train a tasks.py {small}")
    other = HELD_OUT.replace(
        '"cyan", "mint", "rust", "sand", "wine", "jade", "coal", "snow"',
        '"zinc", "iron", "lead", "gold", "tin"',
    )
    (tmp_path / "other.py").write_text(other)
    candidate = checkpoints(hud, "a")[-1]["name"]
    elsewhere = PLAYED.replace("held_out.py", "other.py")
    hud(f"models promote m {candidate} --from a {elsewhere} --force --json")
    for model in dict.fromkeys(("a", learner)):
        hud(f"models rm {model} --yes")
    if way == "replaced":
        hud(CREATE.replace("create m", "create a"))
    hud("models fork m --name c")
    hud(f"train c tasks.py {small}")
    refusal = hud(f"models promote m {checkpoints(hud, 'c')[-1]['name']} --from c {PLAYED}", 2)
    assert "trained on" in refusal


@pytest.mark.slow
def test_conversations_of_a_file_that_have_prompts_of_held_out_tasks_are_trained_on(hud, tmp_path):
    """They name no task, so nothing compared them with the tasks."""
    hud(CREATE)
    hud("models fork m --name a")
    words = ("apple", "pear", "SAY  wine")
    rows = [
        {"messages": [{"role": "user", "content": text if " " in text else f"say {text}"}, ANSWER]}
        for text in words
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    hud("train a held_out.py --from rows.jsonl --epochs 1 --json --lr 0.001")
    candidate = checkpoints(hud, "a")[-1]["name"]
    refusal = hud(f"models promote m {candidate} --from a {PLAYED}", 2)
    assert "1 of the 8 tasks are trained on, such as say(word='wine')" in refusal


@pytest.mark.slow
@pytest.mark.parametrize("way", ["by reward", "from a file"])
def test_an_export_that_is_added_again_has_trained_too(hud, tmp_path, way):
    """It had no record of what its weights learned from."""
    hud(CREATE)
    small = "--steps 1 --group 4 --tasks-per-step 4 --max-tokens 8 --max-turns 1 --lr 0.01 --json"
    if way == "by reward":
        hud(f"train m held_out.py {small}")
    else:
        row = {"messages": [{"role": "user", "content": "say rust"}, ANSWER]}
        (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
        hud("train m held_out.py --from rows.jsonl --epochs 1 --json --lr 0.001")
    hud("models export m -o exported")
    hud("models rm m --yes")
    hud("models add exported --name n")
    hud("models fork n --name c")
    hud(f"train c tasks.py {small}")
    refusal = hud(f"models promote n {checkpoints(hud, 'c')[-1]['name']} --from c {PLAYED}", 2)
    assert "trained on" in refusal


@pytest.mark.slow
def test_a_system_prompt_that_shows_held_out_tasks_is_no_better_than_training_on_them(
    hud, tmp_path
):
    hud(CREATE)
    (tmp_path / "prompt.txt").write_text("You answer.\n\nsay wine\nyes\n")
    hud("models prompt m --add prompt.txt")
    refusal = hud(f"models promote m {checkpoints(hud)[-1]['name']} {PLAYED}", 2)
    assert "1 of the 8 tasks are trained on, such as say(word='wine')" in refusal
