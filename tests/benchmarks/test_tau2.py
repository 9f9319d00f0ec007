"""`tau2`: customer service over an airline, a shop and a carrier, graded on the records that are left behind."""

from __future__ import annotations

import pytest
from tests.agents.servers import openai_chat
from tests.agents.servers.loopback import beside
from tests.benchmarks.played import NOTHING, installed, rewards

from hud.agents import ScriptedAgent
from hud.errors import UsageError
from hud.eval import NullRecorder, Taskset
from hud.trace import ToolCall
from hud_benchmarks.tau2.benchmarks import LEFT_OUT, SIZES

DOMAINS = ("airline", "retail", "telecom")


@pytest.fixture(scope="module", autouse=True)
def package():
    installed("tau2/airline")


def service(domain, identifier):
    from hud_benchmarks.tau2.service import Service

    return Service(domain, identifier)


async def played(name, slug, script):
    tasks = installed(name).tasks("train").filter([slug])
    (run,) = (await tasks.run(ScriptedAgent(script), recorder=NullRecorder())).runs
    return run


async def call(run, name, **arguments):
    return await run.call_tool(ToolCall(id="1", name=name, arguments=arguments))


@pytest.mark.slow
@pytest.mark.parametrize("domain", DOMAINS)
async def test_a_sample_of_solutions_scores_1_and_doing_nothing_0(domain):
    benchmark = installed(f"tau2/{domain}")
    tasks = benchmark.tasks()
    some = tasks.filter([tasks[at].slug for at in range(0, len(tasks), 9)])
    assert set((await rewards(some, benchmark.oracle())).values()) == {1.0}
    assert set((await rewards(some, NOTHING)).values()) == {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "held-out"])
@pytest.mark.parametrize("domain", DOMAINS)
async def test_every_solution_scores_1_and_doing_nothing_0(domain, split):
    benchmark = installed(f"tau2/{domain}")
    tasks = benchmark.tasks(split)
    assert len(tasks) == SIZES[domain][split]
    solved = await rewards(tasks, benchmark.oracle())
    assert {slug: one for slug, one in solved.items() if one != 1.0} == {}
    idle = await rewards(tasks, NOTHING)
    assert {slug: one for slug, one in idle.items() if one != 0.0} == {}


@pytest.mark.parametrize("domain", ["airline", "retail"])
def test_tasks_are_left_out_exactly_where_doing_nothing_solves_them(domain):
    from hud_benchmarks.tau2.data import split_ids, tasks

    idle = {one for one in tasks(domain) if service(domain, one).problem() is None}
    assert idle == LEFT_OUT[domain]
    assert not set(split_ids(domain, "train")) & set(split_ids(domain, "test"))


def test_runs_share_no_record_that_changes():
    one, other = service("retail", "16"), service("retail", "16")
    one.solve()
    assert one.desks[0].records != other.desks[0].records
    assert other.desks[0].records == service("retail", "16").desks[0].records


@pytest.mark.parametrize(
    ("wanted", "told", "counts"),
    [
        ("4", "You have 4 bags.", True), ("4", "Reservation 4WQ150 of flight 24.", False), ("4", "It is $14.40.", False),
        ("1628", "It is $1,628.00.", True), ("1628", "It is $11,628.", False), ("180.1", "It is $180.10", True),
        ("180.1", "It is $180.12", False), ("10", "There are 10.", True), ("10", "It is 10.5.", False),
        ("IL", "Chicago, IL, 60621", True), ("IL", "I sent an email.", False), ("camera", "two cameras", True),
        ("20 hours", "It lasts 20 hours.", True), ("20 hours", "It lasts 120 hours.", False),
        ("10", "There are 10: red, blue.", True), ("10", "It was on 2024-05-10 at 10:30.", False), ("4", "3/4/5", False),
        ("4", "1. One\n2. Two\n3. Three\n4. Four\n5. Five\n6. Six\n7. You have 4 bags.", True),
    ],
)  # fmt: skip
def test_what_the_customer_must_be_told_is_words_and_numbers_of_their_own(wanted, told, counts):
    at_desk = service("retail", "67")
    at_desk.task = {**at_desk.task, "evaluation_criteria": {"communicate_info": [wanted]}}
    at_desk.messages.append(told)
    problem = at_desk.problem() or ""
    assert problem.startswith("The customer was not told") is not counts


def test_an_agent_that_says_all_numbers_tells_the_customer_nothing():
    at_desk = service("retail", "67")
    assert at_desk.to_be_said == ["829.43"]
    at_desk.messages.append(" ".join(f"{place / 100:.2f}" for place in range(100_000)))
    assert "a guess" in at_desk.problem()
    at_desk.messages[:] = [" ".join(f"{place}.5 829.43" for place in range(1000, 3000))]
    assert "more than 1,000 numbers" in at_desk.problem()


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("4", " ".join(map(str, range(10)))),
        ("4", "\n".join(f"Is it {number}?" for number in (1, 9, 2, 8, 3, 7, 4))),
        ("10", "; ".join(map(str, range(1, 100)))),
        ("60", " or ".join(f"${number}" for number in range(50, 72))),
        ("327", ", ".join(map(str, range(300, 501)))),
        ("9.89", " ".join(f"{place / 100:.2f}" for place in range(700, 1000))),
    ],
)  # fmt: skip
def test_a_number_among_many_alike_is_a_guess(wanted, told):
    at_desk = service("retail", "67")
    at_desk.task = {**at_desk.task, "evaluation_criteria": {"communicate_info": [wanted]}}
    at_desk.messages.append(told)
    assert "a guess" in (at_desk.problem() or "")


HONEST = [
    ["You may bring 4 suitcases."],
    ["4"],
    ["The total number of suitcases is **4**."],
    ["There are 2 passengers with 2 free bags each, so 4 checked bags in total."],
    [
        "Regular: 0 bags in basic economy, 1 bag in economy, 2 bags in business. Silver: 1, 2 or 3 bags.",
        "Flight 7 on day 3 at gate 9 takes 6 hours with 1 stop for 2 passengers, 5 rows from 8. You may bring 4 bags.",
        "It leaves in 7 hours from gate 9, and 8 seats are free. Is there more that I can do?",
    ],
]
GUESSED = [
    [" ".join(map(str, range(10)))],
    ["You may bring 1, 2, 3, 4 or 5 suitcases."],
    [f"You may bring {number} suitcases." for number in (4, 2, 5)],
    ["4 dogs, 1 cat, 2 birds, 3 fish."],
    ["Is it 1 bag? 2 bags? 3 suitcases? 4 pieces?"],
    ["Flight 4 leaves at gate 4 in row 4 today."],
]


@pytest.mark.parametrize(
    ("messages", "solved"), [(m, True) for m in HONEST] + [(m, False) for m in GUESSED]
)
def test_a_count_is_told_with_what_it_counts_and_in_the_end(messages, solved):
    at_desk = service("airline", "3")
    at_desk.messages.extend(messages)
    assert (at_desk.problem() is None) is solved, at_desk.problem()


@pytest.mark.parametrize("task", ["2", "3", "4"])
@pytest.mark.parametrize(
    ("told", "counts"),
    [
        ("There are 10 T-shirt options in the store.", True),
        ("Of 12 variants, 10 are available right now.", True),
        ("**10** different shirts are in stock; I returned 3 items for order 11, 12 and 13 days ago.", True),
        ("It has 10 sizes.", False),
        (" ".join(f"{number} options," for number in range(10, 30)), False),
    ],
)  # fmt: skip
def test_options_are_counted_by_their_words(task, told, counts):
    at_desk = service("retail", task)
    at_desk.messages.append(told)
    problem = at_desk.problem() or ""
    assert ("'10'" not in problem) is counts, problem


async def test_a_telecom_agent_repairs_the_phone_itself():
    from hud_benchmarks.tau2.environment import case

    said = []

    async def repair(run):
        assert "say" not in {tool.name for tool in run.tools}
        said.append(await call(run, "run_speed_test"))
        said.append(await call(run, "toggle_data"))
        said.append(await call(run, "run_speed_test"))
        said.append(await call(run, "get_customer_by_phone", phone_number="555-123-2002"))
        said.append(await call(run, "get_details_by_id", id="X1"))

    alone = case(domain="telecom", identifier="[mobile_data_issue]data_mode_off[PERSONA:None]")
    tasks = Taskset("one problem", [alone])
    (run,) = (await tasks.run(ScriptedAgent(repair), recorder=NullRecorder())).runs
    assert (run.error, run.reward) == (None, 1.0)
    texts = [result.text for result in said]
    assert "failed" in texts[0]
    assert "Mobile Data is now ON" in texts[1]
    assert "275.00 Mbps (Excellent)" in texts[2]
    assert "John Smith" in texts[3]
    assert [result.is_error for result in said] == [False] * 4 + [True]


def test_a_locked_sim_card_is_only_solved_by_a_transfer():
    from hud_benchmarks.tau2.data import tasks

    task = next(one for one in tasks("telecom") if "lock_sim_card_pin[PERSONA:None" in one)
    desk = service("telecom", task)
    assert "transfer_to_human_agents was not called" in desk.problem()
    desk.call("transfer_to_human_agents", {"summary": "locked"})
    assert desk.problem() is None


def test_a_paid_bill_and_a_resumed_line_bring_service_back_after_a_reboot():
    desk = service("telecom", _suspended())
    bar = desk.call("check_status_bar", {})
    number = desk.telecom.number
    customer = desk.call("get_customer_by_phone", {"phone_number": number})
    bills = desk.call("get_bills_for_customer", {"customer_id": customer["customer_id"]})
    overdue = next(bill for bill in bills if bill["status"] == "Overdue")
    ids = {"customer_id": customer["customer_id"], "bill_id": overdue["bill_id"]}
    desk.call("send_payment_request", ids)
    with pytest.raises(UsageError, match="already awaiting payment"):
        desk.call("send_payment_request", ids)
    assert str(overdue["total_due"]) in desk.call("check_payment_request", {})
    desk.call("make_payment", {})
    assert overdue["status"] == "Paid"
    line = desk.telecom.carrier.line_with(number)
    desk.call("resume_line", {"customer_id": customer["customer_id"], "line_id": line["line_id"]})
    assert desk.call("check_status_bar", {}) == bar
    assert "5G" in desk.call("reboot_device", {})


def _suspended():
    from hud_benchmarks.tau2.data import tasks

    return next(
        one for one in tasks("telecom") if one.startswith("[service_issue]overdue_bill_suspension[")
    )


def test_items_of_an_order_are_exchanged_each_at_its_own_price():
    shop = service("retail", "16").desks[0]
    order = next(
        order
        for order in shop.records["orders"].values()
        if order["status"] == "pending" and len({item["name"] for item in order["items"]}) > 1
    )
    order = shop.get_order_details(order["order_id"])
    pairs = []
    for item in order["items"][:2]:
        variants = shop.get_product_details(item["product_id"])["variants"].values()
        new = next(
            one for one in variants if one["available"] and one["item_id"] != item["item_id"]
        )
        pairs.append((item["item_id"], new))
    before = sum(item["price"] for item in order["items"][:2])
    method = next(
        name
        for name, one in shop.get_user_details(order["user_id"])["payment_methods"].items()
        if one.get("balance", 10_000) > 2_000
    )
    old, new = zip(*pairs, strict=True)
    arguments = (order["order_id"], list(old), [one["item_id"] for one in new], method)
    shop.modify_pending_order_items(*arguments)
    assert [item["price"] for item in order["items"][:2]] == [one["price"] for one in new]
    paid = order["payment_history"][-1]
    difference = sum(one["price"] for one in new) - before
    assert paid["amount"] == pytest.approx(abs(difference), abs=0.005)
    with pytest.raises(UsageError, match="Non-pending order cannot be modified"):
        shop.modify_pending_order_items(*arguments)


@pytest.mark.parametrize(
    ("expression", "value"), [("1 + 2 * 3", 7.0), ("-(1.5 - 3) / 4", 0.38), ("0.1 + 0.2", 0.3)]
)
def test_the_calculator_computes_arithmetic(expression, value):
    assert service("retail", "16").call("calculate", {"expression": expression}) == value


@pytest.mark.parametrize(
    "expression", ["9 ** 9 ** 9", "__import__('os')", "1 / 0", "True + 1", "(" * 990, ""]
)
def test_the_calculator_computes_nothing_else(expression):
    with pytest.raises(UsageError):
        service("retail", "16").call("calculate", {"expression": expression})


async def test_a_customer_is_played_by_a_model(monkeypatch):
    turns = [openai_chat.say("I am Mia."), openai_chat.say("Thanks! ###STOP###")]
    said = []

    async def talk(run):
        assert "airline" in run.prompt_text.lower()
        said.extend(
            [
                (await call(run, "say", message=message)).text
                for message in ("Hello!", "Done.", "Are you there?")
            ]
        )

    slug = installed("tau2/airline").tasks("train")[0].slug
    with beside(openai_chat.OpenAIChat(*turns)) as server:
        monkeypatch.setenv("HUD_USER_MODEL", f"{server.url}/v1")
        monkeypatch.setenv("HUD_API_KEY", openai_chat.KEY)
        run = await played("tau2/airline", slug, talk)
    assert (run.error, run.reward, server.refused) == (None, 0.0, [])
    over = "The customer has ended the conversation."
    assert said == ["I am Mia.", f"Thanks! \n\n{over}".replace(" \n", "\n"), over]
    asked = server.requests[1]["messages"]
    assert [one["role"] for one in asked] == ["system", "user", "assistant", "user"]
    assert "<scenario>" in asked[0]["content"]


async def test_without_a_model_for_the_customer_nothing_is_measured(monkeypatch):
    monkeypatch.delenv("HUD_USER_MODEL", raising=False)
    slug = installed("tau2/retail").tasks("train")[0].slug
    run = await played("tau2/retail", slug, lambda run: call(run, "say", message="Hello!"))
    assert (run.reward, run.failure_kind) == (None, "environment")
    assert "set HUD_USER_MODEL" in run.error
