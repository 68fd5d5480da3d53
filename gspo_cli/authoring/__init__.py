"""Writing recipes of one's own: copies, checks, the schema for editors, and a first file to start from."""
