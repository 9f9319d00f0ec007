"""The chat format: templates, prompt tokens, grammars and tool-call formats."""
