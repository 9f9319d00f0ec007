"""Gemini's generateContent as a dialect, and its agents."""
