"""Looking inside a loaded model."""
