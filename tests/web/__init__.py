"""HTTP, TLS and passwords, as clients meet them."""
