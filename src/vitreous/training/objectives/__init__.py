"""What is learnt: classification, or masked patches."""
