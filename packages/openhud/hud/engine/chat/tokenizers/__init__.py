"""A folder's tokenizer.json: its bounds, and encoding in a process with limits where its time has none."""
