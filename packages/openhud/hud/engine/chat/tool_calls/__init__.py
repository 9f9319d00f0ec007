"""Tool-call formats: parsing of a model's output into reasoning, text and tool calls, and writing of calls.

One file for each format, one table (`formats.FORMATS`). A model's chat template determines its format; a setting of the
model (`--tool-format`) overrides the choice. Names are those of vLLM's `--tool-call-parser`; SGLang's are aliases.
"""
