"""Changes what a model sees, and tells what that moves."""
