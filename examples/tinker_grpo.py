"""GRPO written against Tinker's client alone: a model learns to answer with vowels.

    TINKER_BASE_URL=http://localhost:8000 TINKER_API_KEY=tml-$HUD_API_KEY python examples/tinker_grpo.py MODEL

MODEL is any model of the server. Prints the mean reward of every step, and where the result is.
"""

import sys
from statistics import mean

import tinker
from tinker import types

GROUP, STEPS, LEARNING_RATE = 16, 30, 1e-2
WORDS = ("red", "sun", "pot", "log")


def reward_of(text: str) -> float:
    """Return the share of vowels."""
    return sum(letter in "aeiou" for letter in text) / max(len(text), 1)


def datum_of(prompt: list[int], sequence: types.SampledSequence, advantage: float) -> types.Datum:
    """Return a sampled sequence as training data: position i of the input predicts token i + 1."""
    ids = prompt + sequence.tokens
    context = [0.0] * (len(prompt) - 1)
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={
            "target_tokens": ids[1:],
            "logprobs": context + sequence.logprobs,
            "advantages": context + [advantage] * len(sequence.tokens),
        },
    )


def main(base_model: str) -> list[float]:
    """Train, and return the mean reward of each step."""
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model, rank=8).result()
    tokenizer = client.get_tokenizer()
    questions = [
        [{"role": "user", "content": f"Which letters are the vowels of {word}?"}] for word in WORDS
    ]
    prompts = [
        tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False)
        for one in questions
    ]
    rewards = []
    for step in range(STEPS):
        sampler = client.save_weights_and_get_sampling_client().result()
        params = types.SamplingParams(max_tokens=8, seed=step)
        asked = [sampler.sample(types.ModelInput.from_ints(ids), GROUP, params) for ids in prompts]
        data, seen = [], []
        for ids, future in zip(prompts, asked, strict=True):
            sequences = future.result().sequences
            found = [
                reward_of(tokenizer.decode(one.tokens, skip_special_tokens=True))
                for one in sequences
            ]
            baseline = mean(found)
            seen += found
            data += [
                datum_of(ids, one, (reward - baseline) / GROUP)
                for one, reward in zip(sequences, found, strict=True)
                if reward != baseline
            ]
        if data:
            passed = client.forward_backward(data, "importance_sampling")
            stepped = client.optim_step(types.AdamParams(learning_rate=LEARNING_RATE))
            passed.result(), stepped.result()
        rewards.append(mean(seen))
        print(f"step {step}: reward {rewards[-1]:.3f}")
    print(f"saved: {client.save_state('trained').result().path}")
    service.close("success").result()
    return rewards


if __name__ == "__main__":
    main(sys.argv[1])
