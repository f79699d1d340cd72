"""How close releases are to the private data, compared with the published algorithms."""
