"""OpenAI's Responses dialect: conversations to input items, output items to turns, computers in between."""
