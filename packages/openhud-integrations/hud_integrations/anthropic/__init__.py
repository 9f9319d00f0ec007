"""Anthropic's Messages API as a dialect, and Claude's agent."""
