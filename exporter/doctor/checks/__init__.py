"""What is looked for: a small pure function for each mistake, by the noun that it is about."""
