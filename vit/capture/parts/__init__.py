"""Finds the parts of a model: layers, patches and their pixels, the order of tokens, logits and what they read."""
