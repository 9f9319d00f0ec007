"""Conversations with one tool call, by the official client."""


def in_responses(client, stream, text, **settings):
    """Return the call of the first answer, that answer, and the answer to the tool's result `text`, in responses."""

    def ask(**asked):
        asked = {**settings, **asked}
        if not stream:
            return client.responses.create(**asked)
        *_, last = client.responses.create(stream=True, **asked)
        return last.response

    first = ask(input="hello")
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": text}
    return call, first, ask(input=[result], previous_response_id=first.id)
