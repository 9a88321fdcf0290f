"""Evaluation: lighteval in a process of its own under limits, suites of tasks, and the results as typed values."""
