"""Templates and tasks: prompts, answers, rewards, and the runtime that a task requires."""
