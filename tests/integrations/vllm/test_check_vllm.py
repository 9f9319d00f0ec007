"""`scripts/check-vllm`, which is for real servers, runs through on stand-ins."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine.tiny_policy import tiny_folder
from tests.integrations.vllm.vllm_requests import CPU_BLOCK
from tests.integrations.vllm.vllm_stand_in import StandIn

SCRIPT = Path(__file__).parents[3] / "scripts" / "check-vllm"


def check(*arguments):
    found = subprocess.run(
        [sys.executable, SCRIPT, tiny_folder(), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return found.returncode, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--lora-rank", "4")])
def test_servers_that_do_what_they_should_pass(more):
    with StandIn(tiny_folder()) as one, StandIn(tiny_folder()) as two:
        code, said = check(one.url, two.url, *more)
        assert not one.adapters | two.adapters
    assert code == 0, said
    assert "All checks passed." in said
    assert said.count("\nok ") == 8
    assert "0 nats" not in said.replace("e-0", "")


@pytest.mark.slow
def test_the_prompt_of_the_cache_check_is_longer_than_a_block_of_a_cpu_server():
    with StandIn(tiny_folder(), block=CPU_BLOCK) as server:
        code, said = check(server.url)
    assert code == 0, said
    assert f"a known prompt is not computed again: {CPU_BLOCK} of 192 tokens" in said


@pytest.mark.slow
def test_one_that_does_not_is_told():
    with StandIn(tiny_folder(), processed=False) as server:
        code, said = check(server.url, "--lora-rank", "4")
        assert not server.adapters
    assert code == 1
    assert "--logprobs-mode processed_logprobs" in said
