"""Parts that several integrations use: tasks as rows and prompts, runs as token sequences, loops of other libraries."""
