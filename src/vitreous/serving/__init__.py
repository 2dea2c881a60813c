"""The HTTP server: an API, and pages to look inside a model and at runs."""
