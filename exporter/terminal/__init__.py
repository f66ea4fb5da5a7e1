"""A person's terminal: colours where it has any, lines that fit it, and a screen that is drawn again and again."""
