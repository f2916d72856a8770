"""The evidence: kept runs, their queue, and what builds the page of experiments."""
