"""Parts of saliency: its prompt, its scores, and their picture."""
