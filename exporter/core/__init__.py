"""What observations mean: pure functions from what was known and what is seen to what is known and what happened."""
