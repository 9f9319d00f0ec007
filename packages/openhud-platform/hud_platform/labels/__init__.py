"""Labels of people and programs on runs, jobs and checkpoints, and the agreement of raters."""
