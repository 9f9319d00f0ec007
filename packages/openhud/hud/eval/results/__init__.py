"""Results: statistics, intervals, comparisons, failures."""
