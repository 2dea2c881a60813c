"""Many images in, one row each out: listed lazily, decoded in parallel, written so that nothing is lost or done twice."""
