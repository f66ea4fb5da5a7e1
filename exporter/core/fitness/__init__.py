"""How well a GPU is shared: what its clients may use, what they do use, and what it would still take."""
