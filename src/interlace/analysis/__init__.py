"""Looking at what a method does: every token's number."""
