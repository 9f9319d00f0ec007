"""Web applications of a run's own: server-rendered pages over SQLite, seeded, graded on the rows left behind."""
