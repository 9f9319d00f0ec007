"""OpenAI's Responses API as a dialect, and OpenAI's agents."""
