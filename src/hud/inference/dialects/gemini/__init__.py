"""Gemini's generateContent API."""
