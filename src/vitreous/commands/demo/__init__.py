"""The demo: the whole story on built-in data."""
