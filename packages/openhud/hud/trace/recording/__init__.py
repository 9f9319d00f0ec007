"""Recording: the journal, the recorder protocol, and instrumented functions."""
